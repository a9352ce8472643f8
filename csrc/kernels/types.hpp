// Types that kernels and the host share.
#pragma once

// Functions for hosts and devices; common.cuh defines them for devices. On hosts they are always
// inlined, so that files which are compiled for several instruction sets share no copy.
#ifndef MDCG_HD
#define MDCG_HD inline __attribute__((always_inline))
#define MDCG_UNROLL
namespace mdcg {
MDCG_HD float exponential(float x) { return __builtin_expf(x); }
MDCG_HD double exponential(double x) { return __builtin_exp(x); }
MDCG_HD float log_of_1_plus(float x) { return __builtin_log1pf(x); }
MDCG_HD double log_of_1_plus(double x) { return __builtin_log1p(x); }
MDCG_HD double square_root(double x) { return __builtin_sqrt(x); }
MDCG_HD double power(double x, double p) { return __builtin_pow(x, p); }
}  // namespace mdcg
#endif

namespace mdcg {

typedef long long Long;

// What one access to memory loads or stores.
template <typename T>
struct alignas(16) PackOf {
    static constexpr int ITEMS = 16 / sizeof(T);
    T v[ITEMS];
};

}  // namespace mdcg
