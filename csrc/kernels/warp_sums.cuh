// Sums over the lanes of a warp.
#pragma once
#include "kernels/vectors.cuh"

// The largest power of two that is at most `count`, and at most `limit`, a power of two.
constexpr int largest_power_of_two(int count, int limit) {
    return limit <= count ? limit : largest_power_of_two(count, limit / 2);
}

// Sums N values, a power of two up to 32, over 32 lanes; lane l holds value l / (32 / N)
// afterwards.
template <int HALF, int BIT>
MDCG_INLINE void reduce_step(T* v, int lane) {
    if constexpr (HALF >= 1) {
        const bool upper = lane & BIT;
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const T keep = upper ? v[i + HALF] : v[i];
            const T send = upper ? v[i] : v[i + HALF];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, send, BIT);
        }
        reduce_step<HALF / 2, BIT / 2>(v, lane);
    } else if constexpr (BIT >= 1) {
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], BIT);
        reduce_step<0, BIT / 2>(v, lane);
    }
}
template <int N>
MDCG_INLINE T reduce(T* v, int lane) {
    reduce_step<N / 2, 16>(v, lane);
    return v[0];
}
template <int N>
MDCG_INLINE T reduce(T (&v)[N], int lane) {
    return reduce<N>(&v[0], lane);
}
