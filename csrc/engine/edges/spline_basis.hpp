// B-splines of equally spaced knots, for a number or a vector of positions. The functions are
// static because they are compiled once for each instruction set.
#pragma once

namespace mdcg {

// Degree of the splines in tables of weights.
template <typename T>
constexpr int TABLE_STEPS = sizeof(T) == 8 ? 9 : 5;

// Turns the values [d] of the nonzero B-splines of degree d - 1 at position t (0 to 1) within an
// interval into those of degree d, [d + 1].
template <typename V>
static inline void raise_degree(int d, V t, V* found) {
    const double inverse = 1.0 / d;
    V before = {};
    for (int r = 0; r < d; ++r) {
        const V part = found[r] * inverse;
        found[r] = before + (double(r + 1) - t) * part;
        before = (t + double(d - 1 - r)) * part;
    }
    found[d] = before;
}

// The values [degree + 1] of the nonzero B-splines at position t within an interval.
template <typename V>
static inline void basis_at(int degree, V t, V* found) {
    found[0] = V{} + 1.0;
    for (int d = 1; d <= degree; ++d) raise_degree(d, t, found);
}

}  // namespace mdcg
