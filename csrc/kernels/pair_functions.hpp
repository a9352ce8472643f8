// Functions of the distance of two atoms, written once for hosts and devices. V is a number or a
// vector of numbers; the including file declares exponential(V) and square_root(V) before.
#pragma once

#include "kernels/radial_functions.hpp"
#include "kernels/types.hpp"

namespace mdcg {

// How much a neighbour counts in a coordination number: 1 / (1 + exp(-steepness (radius / r - 1))).
// `change` is its derivative by r, divided by r.
template <typename V>
MDCG_HD V neighbour_count(double radius, double steepness, V square, V& change) {
    const V ratio = radius / square_root(square);
    const V decay = exponential(steepness - steepness * ratio);
    const V count = 1.0 / (1.0 + decay);
    change = -steepness * ratio * decay * count * count / square;
    return count;
}

// Damping of r^-6 and r^-8 for one pair of types,
//     g(r) = s6 / (r^6 + a6 + p6 / r^8) + s8 / (r^8 + a8 + p8 / r^8).
// Becke-Johnson damping has p = 0, zero damping a = 0.
struct PairDamping {
    double s6, a6, p6, s8, a8, p8;
};

// Returns g. `slope` is -dg/dr, divided by r.
template <bool zero_damping, typename V>
MDCG_HD V damped_powers(const PairDamping& d, V square, V& slope) {
    const V r4 = square * square, r6 = r4 * square, r8 = r4 * r4;
    V low = r6 + d.a6, high = r8 + d.a8;
    V low_slope = 6.0 * r4, high_slope = 8.0 * r6;  // d/dr / r
    if (zero_damping) {
        const V r_8 = 1.0 / r8, r_10 = r_8 / square;
        low += d.p6 * r_8;
        high += d.p8 * r_8;
        low_slope -= 8 * d.p6 * r_10;
        high_slope -= 8 * d.p8 * r_10;
    }
    const V inverse = 1.0 / (low * high), below = inverse * high, above = inverse * low;
    slope = d.s6 * below * below * low_slope + d.s8 * above * above * high_slope;
    return d.s6 * below + d.s8 * above;
}

// Screened nuclear repulsion (Ziegler, Biersack, Littmark) with a polynomial cutoff.
struct ScreenedRepulsion {
    const double *factor, *a, *r_max;  // [num_types * num_types] by receiver and sender
    const double* coefficients;        // [terms]
    const double* exponents;           // [terms]
    Long terms;
    double power;  // exponent of the cutoff

    // Energy of a pair at distance r and its derivative; returns false beyond the cutoff.
    MDCG_HD bool at(Long pair, double r, double& energy, double& slope) const {
        const double reach = r_max[pair];
        if (!(r < reach)) return false;
        double cut, cut_slope;
        polynomial_cutoff(power, 0, r / reach, cut, cut_slope);
        double screen = 0, screen_slope = 0;
        for (Long k = 0; k < terms; ++k) {
            const double decay = exponents[k] / a[pair];
            const double term = coefficients[k] * exponential(-decay * r);
            screen += term;
            screen_slope -= decay * term;
        }
        const double scale = factor[pair] / r;
        energy = scale * screen * cut;
        slope = scale * (screen_slope * cut + screen * cut_slope / reach - screen * cut / r);
        return true;
    }
};

}  // namespace mdcg
