// Tables of all weights of an edge, or of its hidden units, as functions of its length, for CPUs:
// B-splines of degree 5 in single precision and 9 in double (RadialFit). A high degree needs few
// knots, and such a table stays in the caches.
//
// Between the knots the spline is the energy: forces are its exact derivative. In single precision
// the differences of coefficients are kept beside them, as taken in double: the derivative would
// otherwise lose the digits that neighbouring coefficients have in common. Edges shorter than a
// 64th of the cutoff are not in the table; the exact network serves them.
#pragma once

#include <cstdint>

#include "engine/edges/radial_tables.hpp"
#include "engine/edges/spline_basis.hpp"
#include "engine/rows.hpp"

namespace mdcg {

template <typename T>
class RadialTable {
public:
    RadialTable(const RadialSpec& spec, WeightColumns columns, TableContent content);

    // Builds what the pairs of types (receiver, sender) of the edges need and is not there yet.
    // False: a pair can have no table that is exact enough.
    bool require(const std::int32_t* types, const std::int32_t* receiver,
                 const std::int32_t* sender, std::int64_t edges, std::int64_t nodes);

    // [width / A][rows()][A]: coefficients, and by how much the next one differs, as a difference
    // of doubles; null in double, where differences of rows are good enough.
    const T* data() const { return data_.data(); }
    const T* steps() const { return SINGLE ? steps_.data() : nullptr; }
    std::int64_t rows() const { return rows_; }

    // First row of each edge, [capacity], and what its steps count in the weight and in its
    // derivative with respect to the length, [TABLE_STEPS<T>][capacity]:
    //     w(e) = data[knot[e]] + sum_j basis[j][e] * steps[knot[e] + j],
    // and without the first term for the derivative; a row of zeros from r_max on and for unused
    // edges. False: an edge is too short for the table.
    bool look_up(const RadialEdges& edges, std::int32_t* knot, T* basis, T* slope) const;

private:
    static constexpr bool SINGLE = sizeof(T) == 4;
    void build(const std::vector<int>& tables);

    WeightColumns columns_;
    RadialTables tables_;
    AlignedArray<T> data_, steps_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
