// Compiled kernels of one package, which `python -m mdcg kernels` makes. The cache holds such
// files, and users can name one. Their code is executed; see "Compiled kernels" in
// mdcg/package/FORMAT.md.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/package/package.hpp"

namespace mdcg {

// Everything of a package that its kernels depend on, as JSON: the layers, the irreps of values,
// and the types and shapes of tensors, not their numbers. Python generates kernels from it alone.
std::string kernel_problem(const Package& package);
// Names the kernels of a problem: the name of their entry in the cache.
std::string kernel_key(const std::string& problem);
// Digest of the sources that generate kernels. A kernel file holds it together with the version.
const char* kernel_generator();
// Key of the text of a kernel for devices: 32 hexadecimal digits.
std::string text_key(const std::string& text);

// "sm_90" -> 90, "gfx90a" -> 0x90a; 0: the text is not such a target.
int parse_device_target(const std::string& text);

// Every function throws EngineError (ErrorKind::file) if the file is damaged.
class KernelFile {
public:
    KernelFile(std::shared_ptr<const Package> file);
    // Has only descriptions of passes (a JSON list), to list the texts of `package`.
    KernelFile(std::shared_ptr<const Package> package, const std::string& passes);
    ~KernelFile();

    const std::string& path() const { return file_->path(); }
    const Package& package() const { return *file_; }  // the file as it was read
    // Empty, or why these are not the kernels of a problem: "was made for another package".
    std::string misfit(const std::string& problem) const;

    // Whether it has kernels for a target such as "x86-64-v3", "sm_90" or "gfx90a".
    bool has(const std::string& target) const;
    // The library of a layer, given by its number; null: the layer has none.
    const Tensor* library(const std::string& target, int layer) const;

    // "NVRTC 13.0", "hiprtc 6.2"
    std::string compiler(const std::string& target) const;
    int compiler_major(const std::string& target) const;                          // 13
    const Tensor* code(const std::string& target, const std::string& key) const;  // or null
    // Descriptions of one pass of a layer.
    std::vector<const nlohmann::json*> passes(int layer, const std::string& pass) const;

private:
    const Tensor* tensor(const nlohmann::json& name) const;

    std::shared_ptr<const Package> file_;
    std::shared_ptr<const nlohmann::json> given_;  // passes, if they are not from a file
};

}  // namespace mdcg
