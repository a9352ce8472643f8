// Generated C++ text to shared libraries, without Python: the cache, else the host's compiler.
#pragma once

#include <string>
#include <vector>

#include "core/kernel_cache.hpp"

namespace mdcg {

// What code is compiled for.
struct HostTarget {
    std::string name;                // sub-folder of the cache
    std::vector<std::string> flags;  // of the compiler

    // "native" (this processor) or a level such as "x86-64-v3"; throws std::invalid_argument.
    static HostTarget of(const std::string& level);
};

// Command of the host C++ compiler, options from the variable included; throws KernelError.
std::vector<std::string> find_host_compiler();

struct BuiltKernel {
    std::string path;       // kernel.so; empty: see error
    std::string error;      // one sentence
    bool compiled = false;  // now and by this process; else it was there
    double seconds = 0;     // of the compiler
};

// Finds or makes the libraries of texts, several compilers at a time (`processes`; 0: one per
// processor this process may use). Processes that ask at once share the work. Never throws for
// reasons that lie in a text, the compiler or the cache: see BuiltKernel::error.
std::vector<BuiltKernel> build_kernels(const std::vector<std::string>& sources,
                                       const HostTarget& target, int processes = 0);

}  // namespace mdcg
