// Generated kernels of a package: bundled, cached, compiled now, or none (generic ones run).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernels.hpp"
#include "engine/package.hpp"

namespace mdcg {

enum class KernelMode {
    automatic,  // generic where no other can be had; the report says why
    generic,    // no code of the package is loaded
    generated,  // an error where generic ones would run
};
KernelMode parse_kernel_mode(const std::string& text);  // "" is "auto"; throws EngineError

// Reads the manifest's "kernels": [{"name", "source": tensor of bytes, "binaries": [{"target":
// "x86-64-v3", "tensor", "sha256"}]}]. Loads nothing before the first `load` that is not generic.
class KernelStore : public KernelLoader {
public:
    // Throws EngineError where the manifest's entries make no sense.
    KernelStore(std::shared_ptr<const Package> package, KernelMode mode);

    const SharedLibrary* load(const std::string& name) override;
    void refuse(const std::string& name, const std::string& why) override;
    std::string report() const override;

    // "kernels: 2 bundled, 1 compiled"
    std::string summary() const override;

private:
    struct Binary {
        std::string target, sha256;
        const Tensor* tensor;
    };
    struct Kernel {
        const Tensor* source;
        std::vector<Binary> binaries;  // the best for this processor first, others left out
        std::shared_ptr<SharedLibrary> library;
        std::string origin = "not loaded";  // bundled, cached, compiled, generic
        std::string target;                 // what it was compiled for
        std::string why;                    // it is not a better one
        double seconds = 0;                 // of the compiler
        bool unloaded = false;              // compiled, and then not loaded
    };

    void load_all();
    bool load_bundled(const std::string& name, Kernel& kernel);
    void load_built(std::vector<std::pair<std::string, Kernel*>>& missing);

    std::shared_ptr<const Package> package_;
    KernelMode mode_;
    bool loaded_ = false;
    std::map<std::string, Kernel> kernels_;
};

}  // namespace mdcg
