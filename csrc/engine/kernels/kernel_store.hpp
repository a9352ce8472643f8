// Generated kernels of a package for this CPU: those of a named file, those of the cache, or none,
// and then generic ones run.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/shared_library.hpp"
#include "engine/kernels/kernel_finder.hpp"

namespace mdcg {

// Loads nothing before the first `load`.
class KernelStore {
public:
    // `refusal`: why kernels must not be generated, or empty.
    KernelStore(std::shared_ptr<const Package> package, KernelChoice choice,
                const std::string& refusal);

    // The library of the kernel of a layer, which has all `symbols`; null: run the generic one, and
    // the report says why. `name` is that of the layer, for the report. Throws EngineError
    // (ErrorKind::compiler) where generated kernels were asked for.
    const SharedLibrary* load(int layer, const std::string& name,
                              std::initializer_list<const char*> symbols);
    // Array: for every kernel its name and where it came from.
    nlohmann::json report() const;
    // "kernels: 2 cached"
    std::string summary() const;

private:
    struct Kernel {
        std::string name;  // of the layer
        std::shared_ptr<SharedLibrary> library;
        std::string why;  // the generic one runs
    };

    const FoundKernels& found() const;
    // Throws std::runtime_error.
    std::shared_ptr<SharedLibrary> read(int layer, std::initializer_list<const char*> symbols);

    KernelFinder finder_;
    FoundKernels none_;              // why generic kernels run; without a reason: others do
    std::map<int, Kernel> kernels_;  // by layer
    // By the address of their code: equal layers share one.
    std::map<const void*, std::shared_ptr<SharedLibrary>> libraries_;
};

}  // namespace mdcg
