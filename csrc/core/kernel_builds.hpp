// Several kernels at a time, from the cache or made now.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "core/kernel_cache.hpp"

namespace mdcg {

struct KernelBuild {
    std::string folder;     // of the cache; empty: see error
    std::string error;      // one sentence
    bool compiled = false;  // now and by this process; else it was there
    double seconds = 0;     // of the compiler
};

// Finds kernels or makes them, in the order given by `order` (numbers of keys), several at a time
// by threads that end here. `make(i, folder)` puts the files of kernel i into an empty folder.
// Processes that ask at once share the work. `advice` is what to do where nothing may be compiled.
// Never throws for reasons that lie in a kernel, the compiler or the cache: see KernelBuild::error.
std::vector<KernelBuild> build_all(const KernelCache& cache, const std::vector<std::string>& keys,
                                   std::vector<std::size_t> order, int threads,
                                   const std::function<void(std::size_t, const std::string&)>& make,
                                   const std::string& advice);

}  // namespace mdcg
