// Parts of the radial basis, written once for hosts and devices; see engine/edges/radial.hpp. V is
// a number or a vector of numbers. The including file declares exponential(V), logarithm(V),
// hyperbolic_tangent(V) and power(V, double) before.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Returns n if polynomial_cutoff() multiplies n - 1 times for its powers, and 0 if it does not.
MDCG_HD int whole_power(double n) {
    const int whole = int(n);
    return n == whole && whole < 64 ? whole : 0;
}

// 1 - (n+1)(n+2)/2 x^n + n(n+2) x^(n+1) - n(n+1)/2 x^(n+2) and its derivative, below x = 1. `whole`
// is whole_power(n), or 0.
template <typename V>
MDCG_HD void polynomial_cutoff(double n, int whole, V x, V& value, V& slope) {
    V low = V{} + 1.0;  // x^(n-1)
    if (whole > 0) {
        MDCG_UNROLL
        for (int i = 1; i < whole; ++i) low *= x;
    } else {
        low = power(x, n - 1);
    }
    const V rest = 1.0 - x;
    value = 1.0 + low * x * (-(n + 1) * (n + 2) / 2 + x * (n * (n + 2) - x * (n * (n + 1) / 2)));
    slope = low * rest * rest * (-n * (n + 1) * (n + 2) / 2);
}

// 1 up to x = start, then (1-u)^2 (1+2u) with u = (x^2 - start^2) / (1 - start^2), and its
// derivative, below x = 1. Its second derivative jumps at `start`.
template <typename V>
MDCG_HD void xplor_cutoff(V start, V x, V& value, V& slope) {
    const V inverse = 1.0 / (1.0 - start * start);
    V u = (x * x - start * start) * inverse;
    u = u > 0.0 ? u : V{};
    const V rest = 1.0 - u;
    value = rest * rest * (1.0 + 2.0 * u);
    slope = -12.0 * u * rest * x * inverse;
}

// Transforms of the length r, and their derivatives.
template <typename V>
MDCG_HD void agnesi_transform(double a, double p, double q, V r, V r_0, V& x, V& slope) {
    const V log_s = logarithm(r / r_0);
    const V v = exponential(log_s * (q - p));
    const V g = a * exponential(log_s * q) / (1.0 + v);
    x = 1.0 / (1.0 + g);
    slope = -x * x * g * (q - (q - p) * v / (1.0 + v)) / r;
}
template <typename V>
MDCG_HD void soft_transform(double a, V r, V r_0, V& x, V& slope) {
    const V p0 = r_0 * (3.0 / 4), p1 = r_0 * (4.0 / 3);
    const V alpha = a / (p1 - p0);
    const V t = hyperbolic_tangent(alpha * (r - 0.5 * (p0 + p1)));
    const V half = 0.5 * (1.0 + t);
    x = p0 + (r - p0) * half;
    slope = half + (r - p0) * 0.5 * alpha * (1.0 - t * t);
}

// Functions of the basis and their derivatives. Bessel functions are not here: hosts multiply by
// 1 / x, and devices divide by x, which takes fewer registers.
template <typename V>
MDCG_HD void gaussian(double coefficient, double center, V x, V& value, V& slope) {
    const V shifted = x - center;
    value = exponential(coefficient * shifted * shifted);
    slope = 2.0 * coefficient * shifted * value;
}

// A Chebyshev polynomial, and the one before; the first is x.
template <typename V>
struct Chebyshev {
    V value, slope = V{} + 1.0;
    V before = V{} + 1.0, slope_before{};

    MDCG_HD void advance(V x) {
        const V next = 2.0 * x * value - before;
        const V next_slope = 2.0 * (value + x * slope) - slope_before;
        before = value;
        slope_before = slope;
        value = next;
        slope = next_slope;
    }
};

}  // namespace mdcg
