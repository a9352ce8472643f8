// Where generated kernels come from; implemented by what may compile and load code.
#pragma once

#include <initializer_list>
#include <string>

#include "core/shared_library.hpp"

namespace mdcg {

class KernelLoader {
public:
    virtual ~KernelLoader() = default;
    // The library of the kernel of a layer, which has all `symbols`; null: run the generic one, and
    // the report says why. `name` is that of the layer, for the report. Throws EngineError
    // (ErrorKind::compiler) where generated kernels were asked for.
    virtual const SharedLibrary* load(int layer, const std::string& name,
                                      std::initializer_list<const char*> symbols) = 0;
    // JSON array: for every kernel its name and where it came from.
    virtual std::string report() const = 0;
    // "kernels: 3 cached"
    virtual std::string summary() const = 0;
};

}  // namespace mdcg
