// Types that kernels and the host share.
#pragma once

// Functions for hosts and devices. On hosts they are always inlined, so that files which are
// compiled for several instruction sets share no copy.
#if defined(__CUDACC__) || defined(__HIP__)
#define MDCG_HD __device__ __forceinline__
#define MDCG_UNROLL _Pragma("unroll")
#define MDCG_MATH(NAME) NAME
#else
#define MDCG_HD inline __attribute__((always_inline))
#define MDCG_UNROLL
#define MDCG_MATH(NAME) __builtin_##NAME
#endif

namespace mdcg {

MDCG_HD float exponential(float x) { return MDCG_MATH(expf)(x); }
MDCG_HD double exponential(double x) { return MDCG_MATH(exp)(x); }
MDCG_HD float log_of_1_plus(float x) { return MDCG_MATH(log1pf)(x); }
MDCG_HD double log_of_1_plus(double x) { return MDCG_MATH(log1p)(x); }
MDCG_HD double logarithm(double x) { return MDCG_MATH(log)(x); }
MDCG_HD double hyperbolic_tangent(double x) { return MDCG_MATH(tanh)(x); }
MDCG_HD float square_root(float x) { return MDCG_MATH(sqrtf)(x); }
MDCG_HD double square_root(double x) { return MDCG_MATH(sqrt)(x); }
MDCG_HD double error_function(double x) { return MDCG_MATH(erf)(x); }
MDCG_HD double power(double x, double p) { return MDCG_MATH(pow)(x, p); }

typedef long long Long;

// The 16 bytes that one access to memory loads or stores.
template <typename T>
struct alignas(16) PackOf {
    static constexpr int ITEMS = 16 / sizeof(T);
    T v[ITEMS];
};

}  // namespace mdcg
