// Polynomials of a table of edge lengths.
#pragma once
#include "kernels/table_entry.hpp"

namespace mdcg {

// Evaluates the polynomial of a column in a row of a table, at z in [-1, 1], and its derivative by
// z. HIGHEST is its degree; files that include this one define a macro DEGREE. at(i) is item i of
// the column: the coefficient of z^i, or two of the highest coefficients in float32, the lower
// power first.
template <int HIGHEST, typename T>
struct TableColumn {
    static constexpr int SINGLES = TABLE_SINGLES<T>, PLAIN = HIGHEST + 1 - SINGLES;
    static constexpr int PAIRS = table_items<T>(HIGHEST) / 2;
    static_assert(HIGHEST % 2 == 1 && PLAIN >= 2, "pairs of factors");

    template <typename At>
    static __device__ __forceinline__ void evaluate(T z, const At& at, T& value, T& slope) {
        if constexpr (SINGLES > 0) {
            const auto single = [&](int k) {
                const double both = at(PLAIN + k / 2);
                return __int_as_float(k % 2 == 0 ? __double2loint(both) : __double2hiint(both));
            };
            const float place = float(z);
            float by_place = single(SINGLES - 1), sum = by_place * place + single(SINGLES - 2);
#pragma unroll
            for (int k = SINGLES - 3; k >= 0; --k) {
                by_place = by_place * place + sum;
                sum = sum * place + single(k);
            }
            slope = T(by_place), value = T(sum);
        } else {
            slope = at(PLAIN - 1), value = slope * z + at(PLAIN - 2);
        }
#pragma unroll
        for (int k = SINGLES > 0 ? PLAIN - 1 : PLAIN - 3; k >= 0; --k) {
            slope = slope * z + value;
            value = value * z + at(k);
        }
    }
};

}  // namespace mdcg
