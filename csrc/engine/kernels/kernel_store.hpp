// Generated kernels of a package for this CPU. If there are none, generic kernels run.
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

    // Returns the library with the kernel of a layer, which has all `symbols`. Null: run the
    // generic kernel; the report says why. `name`: the layer's name, for the report. Throws
    // EngineError (ErrorKind::compiler) if there is none and generated kernels were asked for.
    const SharedLibrary* load(int layer, const std::string& name,
                              std::initializer_list<const char*> symbols);
    // Array: for every kernel its name and where it came from.
    nlohmann::json report() const;
    // "kernels: 2 cached"
    std::string summary() const;

private:
    struct Kernel {
        std::string name;  // name of the layer
        std::shared_ptr<SharedLibrary> library;
        std::string why;  // why the generic kernel runs
    };

    const FoundKernels& found() const;
    // Throws std::runtime_error.
    std::shared_ptr<SharedLibrary> read(int layer, std::initializer_list<const char*> symbols);

    KernelFinder finder_;
    FoundKernels none_;              // `why` says why generic kernels run; empty: they do not
    std::map<int, Kernel> kernels_;  // by layer
    // By the address of their code: equal layers share one.
    std::map<const void*, std::shared_ptr<SharedLibrary>> libraries_;
};

}  // namespace mdcg
