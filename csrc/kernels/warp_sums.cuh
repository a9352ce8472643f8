// Sums over the lanes of a warp.
#pragma once
#include "kernels/vectors.cuh"

// Sums N values over 32 lanes; lane l holds value l / (32 / N) afterwards.
template <int HALF, int BIT, int N>
MDCG_INLINE void reduce_step(T (&v)[N], int lane) {
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
MDCG_INLINE T reduce(T (&v)[N], int lane) {
    reduce_step<N / 2, 16>(v, lane);
    return v[0];
}
