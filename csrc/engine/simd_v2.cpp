// The small kernels for every processor of the architecture.
#define MDCG_SIMD simd_v2
#if defined(__x86_64__)
#define MDCG_SIMD_NAME "x86-64"
#else
#define MDCG_SIMD_NAME "generic"
#endif
#include "engine/simd_kernels.hpp"
