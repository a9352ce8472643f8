#pragma once
#include "kernels/common.cuh"

// Activations by their number in csrc/engine/backend/cpu/simd.hpp, with slopes.
enum Activation { ACT_NONE, ACT_SILU, ACT_TANH, ACT_SIGMOID, ACT_RELU, ACT_ABS, ACT_SSP };

INLINE T activate(int kind, T x, T& slope) {
    if (kind == ACT_SILU || kind == ACT_SIGMOID) {
        const T s = T(1) / (T(1) + exp(-x));
        slope = kind == ACT_SILU ? s * (T(1) + x * (T(1) - s)) : s * (T(1) - s);
        return kind == ACT_SILU ? x * s : s;
    }
    if (kind == ACT_TANH) {
        const T e = exp(T(-2) * fabs(x));
        slope = T(4) * e / ((T(1) + e) * (T(1) + e));
        return copysign((T(1) - e) / (T(1) + e), x);
    }
    if (kind == ACT_RELU) {
        slope = x > T(0) ? T(1) : T(0);
        return x > T(0) ? x : T(0);
    }
    if (kind == ACT_ABS) {
        slope = x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
        return fabs(x);
    }
    if (kind == ACT_SSP) {  // log(1 + e^x) - log 2
        const T e = exp(-fabs(x)), s = T(1) / (T(1) + e);
        slope = x > T(0) ? s : T(1) - s;
        return (x > T(0) ? x : T(0)) + log1p(e) - T(0.69314718055994530942);
    }
    slope = T(1);
    return x;
}
