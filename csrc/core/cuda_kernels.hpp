// CUDA kernels without Python: NVRTC found where it usually lies, several texts compiled at a time,
// machine code kept in the cache that mdcg/runtime/cuda_build.py uses too.
#pragma once

#include <string>
#include <vector>

namespace mdcg {

// Where a host found NVRTC: tried after $MDCG_NVRTC_LIB and before the usual places. For the whole
// process; empty: nowhere.
void set_nvrtc_path(const std::string& path);

struct CudaSource {
    std::string text;
    std::vector<std::string> options;  // beyond those of all kernels
};

struct CudaBinary {
    std::string cubin;
    std::string error;      // one sentence; empty: all is well
    bool compiled = false;  // now, not taken from the cache
    double seconds = 0;     // of the compiler
};

// Names a text and its options, as the cache does: 32 hexadecimal digits.
std::string cuda_kernel_key(const CudaSource& source);

// Machine code of every text for "sm_90" and the like, in order. The longest texts are begun first;
// all threads that the process may use share the work.
std::vector<CudaBinary> load_cuda_kernels(const std::vector<CudaSource>& sources,
                                          const std::string& target);

// The compiler that would be taken: its version as 1000 * major + 10 * minor, 0: there is none; and
// "NVRTC 13.0 (its file)".
int nvrtc_version();
std::string nvrtc_text();

// Forgets a kernel that the driver refused, so that it is made again.
void discard_cuda_kernel(const CudaSource& source, const std::string& target);

}  // namespace mdcg
