// Activations and their slopes for a number or a vector of numbers. The including file declares
// exponential(V) and log_of_1_plus(V) before.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

enum class Activation { none, silu, tanh, sigmoid, relu, abs, ssp };  // ssp: log(1 + e^x) - log 2

template <typename T, typename V>
MDCG_HD V activate(Activation kind, V x, V& slope) {
    const V zero{}, one = zero + T(1);
    if (kind == Activation::silu || kind == Activation::sigmoid) {
        const V s = one / (one + exponential(-x));
        slope = kind == Activation::silu ? s * (one + x * (one - s)) : s * (one - s);
        return kind == Activation::silu ? x * s : s;
    }
    const V size = x < zero ? -x : x;
    if (kind == Activation::tanh) {
        const V e = exponential(T(-2) * size), t = (one - e) / (one + e);
        slope = T(4) * e / ((one + e) * (one + e));
        return x < zero ? -t : t;
    }
    if (kind == Activation::relu) {
        slope = x > zero ? one : zero;
        return x > zero ? x : zero;
    }
    if (kind == Activation::abs) {
        slope = x > zero ? one : x < zero ? -one : zero;
        return size;
    }
    if (kind == Activation::ssp) {
        const V e = exponential(-size), s = one / (one + e);
        slope = x > zero ? s : one - s;
        return (x > zero ? x : zero) + log_of_1_plus(e) - T(0.69314718055994530942);
    }
    slope = one;
    return x;
}

}  // namespace mdcg
