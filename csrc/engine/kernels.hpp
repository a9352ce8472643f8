// Where generated kernels come from; implemented by what may compile and load code.
#pragma once

#include <string>

#include "core/shared_library.hpp"

namespace mdcg {

class KernelLoader {
public:
    virtual ~KernelLoader() = default;
    // The library of the kernel that a layer names in its field `kernel`; null: run the generic
    // one. Throws EngineError (ErrorKind::compiler) where generated kernels were asked for.
    virtual const SharedLibrary* load(const std::string& name) = 0;
    // JSON array: for every kernel its name and where it came from.
    virtual std::string report() const = 0;
    // "kernels: 3 cached"
    virtual std::string summary() const = 0;
};

}  // namespace mdcg
