// The small kernels for x86-64-v4; compiled with its flags.
#if defined(__x86_64__)
#define MDCG_SIMD simd_v4
#define MDCG_SIMD_NAME "x86-64-v4"
#include "engine/simd_kernels.hpp"
#endif
