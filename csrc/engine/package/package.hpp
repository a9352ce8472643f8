// A package on disk: a safetensors file with a manifest. Reading executes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace mdcg {

// The newest package format that this library reads. Files of formats before CLEAN_FORMAT also hold
// 3j symbols, and files of format 1 also the text and the machine code of kernels; these are not
// used.
constexpr int PACKAGE_FORMAT = 4, CLEAN_FORMAT = 3;
constexpr int KERNELS_FORMAT = 1;  // format of a file of compiled kernels

enum class Dtype { f32, f64, u8, i32 };
struct DtypeInfo {
    Dtype dtype;
    const char *file_name, *name;  // "F32" (safetensors), "float32" (numpy)
    std::size_t bytes;
};
const DtypeInfo& about(Dtype dtype);

// Whether objects and lists are nested more than `most` deep. Parsing and printing them is
// recursive, and would use up the stack. For text that is not JSON, the answer has no meaning.
bool nests_too_deep(const char* text, const char* end, int most);

// A tensor of the file. Its numbers stay in the memory that the file was read to.
struct Tensor {
    std::string name;
    Dtype dtype = Dtype::u8;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;  // product of the shape
    const void* data = nullptr;

    // Numbers as T (float or double). Throws EngineError if the tensor has bytes, or if a number is
    // not finite.
    template <typename T>
    std::vector<T> read() const;
    std::string shape_text() const;  // "[2, 128]"
};

// Every function throws EngineError (ErrorKind::file) with one sentence that names the file.
class Package {
public:
    // A model, or the compiled kernels of a model, which are files of the same structure.
    enum class Kind { model, kernels };

    // Reads the file into memory, its header first. Later changes of the file have no effect.
    static std::shared_ptr<const Package> open(const std::string& path, Kind kind = Kind::model);
    // The same for the contents of a file; `path` is for messages.
    static std::shared_ptr<const Package> parse(std::string content, const std::string& path,
                                                Kind kind);
    // Makes another network of the tensors of a package.
    static std::shared_ptr<const Package> with_manifest(std::shared_ptr<const Package> of,
                                                        nlohmann::json manifest);
    // The same package, except that the numbers of some tensors, by name, are elsewhere.
    static std::shared_ptr<const Package> with_numbers(
        std::shared_ptr<const Package> of, const std::map<std::string, const void*>& numbers);
    Package(const Package&) = delete;
    Package& operator=(const Package&) = delete;

    const std::string& path() const { return path_; }
    const nlohmann::json& manifest() const { return *manifest_; }
    const std::string& manifest_text() const { return text_; }
    const std::string& content() const { return content_; }
    std::size_t file_bytes() const { return content_.size(); }
    const std::string& digest() const { return digest_; }  // SHA-256 of the contents
    // The package that kernels are made for: the owner of the tensors, or `self`, this package.
    const std::shared_ptr<const Package>& kernels_of(
        const std::shared_ptr<const Package>& self) const {
        return owner_ != nullptr ? owner_ : self;
    }
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const Tensor* find(const std::string& name) const;  // null: absent
    [[noreturn]] void fail(const std::string& what) const;

private:
    Package() = default;
    // `whole`: bytes of the file. `load(n)` reads its first n bytes into the content.
    void read(Kind kind, std::uint64_t whole, const std::function<void(std::uint64_t)>& load);
    std::uint64_t header_bytes(Kind kind, std::uint64_t whole) const;
    void drop_old_entries();

    std::string path_, content_, text_, digest_;
    std::map<std::string, Tensor> tensors_;
    std::unique_ptr<nlohmann::json> manifest_;
    std::shared_ptr<const Package> owner_;  // owner of the tensors, if it is another package
};

// A number that the model reads once for each system besides its atoms, such as the total charge.
struct Input {
    std::string name;
    bool whole = false;                  // takes whole numbers only
    std::optional<std::int64_t> lowest;  // none: any value
    std::int64_t count = 0;              // the values are lowest .. lowest + count - 1; 0: no last
    double default_value = std::numeric_limits<double>::quiet_NaN();  // NaN: none

    bool takes(double value) const;
    std::string range_text() const;  // "a whole number from -2 to 2"
};

// Facts of the manifest about the whole model, checked.
struct ModelInfo {
    std::string architecture, model_class;
    std::vector<std::string> type_names;
    std::vector<int> atomic_numbers;  // empty: none
    std::vector<Input> inputs;
    // In packages of older versions: inputs of a system whose values the conversion fixed.
    std::map<std::string, std::int64_t> fixed_inputs;
    double r_max = 0;
    bool double_precision = false;
    bool flip_edges = false;  // harmonics of pos[sender] - pos[receiver]
    double layer_tables = std::numeric_limits<double>::infinity();  // bytes for radial tables of a
                                                                    // layer; see budget.hpp
    int num_types() const { return static_cast<int>(type_names.size()); }
};
ModelInfo read_model_info(const Package& package);
// "made for total_charge=-1, total_spin=2", or "reads total_charge (default 0), total_spin"; empty:
// the model has no inputs.
std::string inputs_text(const ModelInfo& info);

}  // namespace mdcg
