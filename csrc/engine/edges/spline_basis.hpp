// B-splines of equally spaced knots, for one place or for a vector of places. The functions are
// static: they are compiled once for each instruction set.
#pragma once

namespace mdcg {

// Turns B-splines of degree d - 1 that are not zero at place t (0 to 1) of an interval, [d], into
// those of degree d, [d + 1].
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

// B-splines that are not zero at place t of an interval, [degree + 1].
template <typename V>
static inline void basis_at(int degree, V t, V* found) {
    found[0] = V{} + 1.0;
    for (int d = 1; d <= degree; ++d) raise_degree(d, t, found);
}

}  // namespace mdcg
