#pragma once
#include "kernels/common.cuh"
#include "kernels/pair_functions.hpp"

// Sums over the lanes of a warp in a fixed order; every lane gets the sum.
INLINE double warp_sum(double value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}
