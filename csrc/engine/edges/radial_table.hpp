// Tables for CPUs of all weights of an edge, or of its hidden units, as functions of its length:
// B-splines of degree 5 in single precision and 9 in double (RadialFit). A high degree needs few
// knots, so that the table stays in the caches.
//
// The spline defines the energy: forces are its exact derivative. In single precision the table
// also holds differences of coefficients, computed in double, because the derivative would
// otherwise lose the digits that neighbouring coefficients have in common. Edges shorter than a
// 64th of the cutoff are not in the table; the exact network is evaluated for them.
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

    // Builds the tables that are missing for the pairs of types (receiver, sender) of the edges.
    // Returns false if no table of a pair is exact enough.
    bool require(const std::int32_t* types, const std::int32_t* receiver,
                 const std::int32_t* sender, std::int64_t edges, std::int64_t nodes);

    // [width / A][rows()][A]: coefficients, and the differences of each row to the next one. In
    // double precision steps() is null, because differences of rows are good enough.
    const T* data() const { return data_.data(); }
    const T* steps() const { return SINGLE ? steps_.data() : nullptr; }
    std::int64_t rows() const { return rows_; }

    // Writes the first row `knot` [capacity] of each edge, and the factors
    // [TABLE_STEPS<T>][capacity] of its steps in the weight (basis) and in its derivative by the
    // length (slope):
    //     w(e) = data[knot[e]] + sum_j basis[j][e] * steps[knot[e] + j];
    // the derivative has no first term. Edges of r_max or more and unused edges get rows of zeros.
    // Returns false if an edge is too short for the table.
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
