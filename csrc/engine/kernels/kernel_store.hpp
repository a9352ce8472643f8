// Generated kernels of a package for CPUs: of a named file, of the cache, or none (generic ones
// run).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernels/kernel_finder.hpp"
#include "engine/kernels/kernel_loader.hpp"

namespace mdcg {

// Loads nothing before the first `load`.
class KernelStore : public KernelLoader {
public:
    KernelStore(std::shared_ptr<const Package> package, KernelChoice choice);

    const SharedLibrary* load(int layer, const std::string& name,
                              std::initializer_list<const char*> symbols) override;
    std::string report() const override;

    // "kernels: 2 cached"
    std::string summary() const override;

private:
    struct Kernel {
        std::string name;  // of the layer
        std::shared_ptr<SharedLibrary> library;
        std::string why;  // the generic one runs
    };

    void find();
    // Throws std::runtime_error.
    std::shared_ptr<SharedLibrary> read(int layer, std::initializer_list<const char*> symbols);

    KernelFinder source_;
    bool looked_ = false, made_again_ = false;
    FoundKernels found_;
    std::map<int, Kernel> kernels_;  // by layer
    // By the place of their code: equal layers share one.
    std::map<const void*, std::shared_ptr<SharedLibrary>> libraries_;
};

}  // namespace mdcg
