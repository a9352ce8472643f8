// Sums over lanes, and of integers, whose results do not depend on the order.
#pragma once
#include "kernels/common.cuh"

// Sums over the lanes of a warp whose numbers have the same rest when divided by `PARTS`.
template <int PARTS = 1, typename N>
INLINE N sum_of_warp(N value) {
#pragma unroll
    for (int bit = 16; bit >= PARTS; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}

INLINE void add_integer(Long* to, Long value) {
    atomicAdd((unsigned long long*)to, (unsigned long long)value);
}
