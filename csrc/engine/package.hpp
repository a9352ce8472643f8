// A package on disk: a safetensors file with a manifest. Reading executes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace mdcg {

// The newest package format that this library reads.
constexpr int PACKAGE_FORMAT = 1;

enum class Dtype { f32, f64, u8, i32 };

// A tensor of the file, in place.
struct Tensor {
    std::string name;
    Dtype dtype = Dtype::u8;
    std::vector<std::int64_t> shape;
    std::int64_t count = 0;  // product of the shape
    const void* data = nullptr;

    // Numbers as T (float or double); throws EngineError where the tensor has bytes or a number is
    // not finite.
    template <typename T>
    std::vector<T> read() const;
    std::string shape_text() const;  // "[2, 128]"
};

// Every function throws EngineError (ErrorKind::file) with one sentence that names the file.
class Package {
public:
    static std::shared_ptr<const Package> open(const std::string& path);
    ~Package();
    Package(const Package&) = delete;
    Package& operator=(const Package&) = delete;

    const std::string& path() const { return path_; }
    const nlohmann::json& manifest() const { return *manifest_; }
    const std::string& manifest_text() const { return text_; }
    const std::map<std::string, Tensor>& tensors() const { return tensors_; }
    const Tensor* find(const std::string& name) const;  // null: absent
    [[noreturn]] void fail(const std::string& what) const;

private:
    Package() = default;
    void read();

    std::string path_, text_;
    void* map_ = nullptr;
    std::size_t size_ = 0;
    std::map<std::string, Tensor> tensors_;
    std::unique_ptr<nlohmann::json> manifest_;
};

// What the manifest says of the whole model, checked.
struct ModelInfo {
    std::string architecture, model_class;
    std::vector<std::string> type_names;
    std::vector<int> atomic_numbers;  // empty: none
    double r_max = 0;
    bool double_precision = false;
    bool flip_edges = false;  // harmonics of pos[sender] - pos[receiver]
    int num_types() const { return static_cast<int>(type_names.size()); }
};
ModelInfo read_model_info(const Package& package);

}  // namespace mdcg
