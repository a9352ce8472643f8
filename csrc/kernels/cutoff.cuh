#pragma once
#include "kernels/common.cuh"

// 1 - (n+1)(n+2)/2 x^n + n(n+2) x^(n+1) - n(n+1)/2 x^(n+2) and its derivative; 0 from x = 1 on.
INLINE void polynomial_cutoff(double n, double x, double& value, double& slope) {
    const bool inside = x < 1.0;
    const double low = pow(x, n - 1), rest = 1.0 - x;
    value = 1.0 + low * x * (-(n + 1) * (n + 2) / 2 + x * (n * (n + 2) - x * (n * (n + 1) / 2)));
    slope = -n * (n + 1) * (n + 2) / 2 * low * rest * rest;
    if (!inside) value = slope = 0;
}

// Of all lanes of a warp, in a fixed order; every lane gets it.
INLINE double warp_sum(double value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}
