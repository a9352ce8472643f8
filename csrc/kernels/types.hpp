// Types that kernels and the host share.
#pragma once

namespace mdcg {

typedef long long Long;

// What one access to memory loads or stores.
template <typename T>
struct alignas(16) PackOf {
    static constexpr int ITEMS = 16 / sizeof(T);
    T v[ITEMS];
};

}  // namespace mdcg
