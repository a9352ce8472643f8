// Where generated kernels come from; implemented by what may compile and load code.
#pragma once

#include <initializer_list>
#include <string>

#include "core/shared_library.hpp"

namespace mdcg {

class KernelLoader {
public:
    virtual ~KernelLoader() = default;
    // The library of the kernel that a layer names in its field `kernel`; null: run the generic
    // one. Throws EngineError (ErrorKind::compiler) where generated kernels were asked for.
    virtual const SharedLibrary* load(const std::string& name) = 0;
    // The library cannot serve the layer: its generic kernel runs, and the report says why; throws
    // EngineError (ErrorKind::compiler) where generated kernels were asked for.
    virtual void refuse(const std::string& name, const std::string& why) = 0;
    // JSON array: for every kernel its name and where it came from.
    virtual std::string report() const = 0;
    // "kernels: 3 cached"
    virtual std::string summary() const = 0;
};

// Whether a library has all symbols; else it is refused.
inline bool has_symbols(const SharedLibrary& library, std::initializer_list<const char*> symbols,
                        KernelLoader& loader, const std::string& kernel) {
    for (const char* symbol : symbols) {
        if (library.find(symbol) != nullptr) continue;
        loader.refuse(kernel, "kernel '" + kernel + "' has no function " + symbol +
                                  ", expected one that mdcg-patch has written: convert the model "
                                  "again");
        return false;
    }
    return true;
}

}  // namespace mdcg
