// Tables of all weights of an edge as functions of its length, per pair of types: B-splines through
// the exact network's values, with its derivative at both ends. On CPUs they are of degree 5 in
// single precision and 9 in double, where they agree with the network to rounding: a high degree
// needs few knots, and such a table stays in the caches. On GPUs, where single precision alone uses
// them, they are cubic.
//
// Knots are uniform in the square root of the length: weights bend most where edges are short, and
// more knots than needed would cost accuracy, as a derivative's rounding error grows with them.
//
// Forces are the exact derivative of the spline. In single precision the differences of
// coefficients are stored as well, computed in double, because the derivative would otherwise lose
// the digits that neighbouring coefficients have in common. Edges shorter than first() are not in
// the table; the exact network serves them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/edges/radial.hpp"
#include "engine/ops/conv_kernel.hpp"
#include "engine/rows.hpp"

namespace mdcg {

// The layout of a row of weights: weight k is in column columns[k] of `width` (a multiple of 64
// bytes).
struct WeightColumns {
    std::vector<std::int32_t> columns;  // [num_weights]
    std::int64_t width = 0;
};

// These two describe a table of hidden units instead of weights: its last layer copies the units,
// and its bias is the unit of constant 1. A spline is linear in the values that it interpolates, so
// the network's own last layer turns a table of units into one of weights.
RadialSpec hidden_spec(RadialSpec spec);
WeightColumns hidden_columns(const RadialSpec& spec, std::int64_t stride);

// Splines through the exact network for pairs of types, in double.
class RadialSpline {
public:
    // `degree`: odd. `knots`: intervals from r_max / 16 to r_max; there are more below r_max / 16.
    RadialSpline(const RadialSpec& spec, int knots, int degree);

    double first(int receiver, int sender) const;  // shortest length in the table, Å
    double step(int receiver, int sender) const;   // between knots, in square roots of lengths
    int intervals() const { return knots_; }
    int rows() const { return knots_ + degree_; }

    // Computes coefficients [rows()][count] of the weights column .. column + count - 1. Interval i
    // has the rows i to i + degree. Several threads may fit at once after `prepare` of the pair.
    void fit(int receiver, int sender, int column, int count, double* coefficients) const;
    void prepare(int receiver, int sender) const;
    // Exact weights at lengths, [count][outputs].
    std::vector<double> exact(const std::vector<double>& lengths, int receiver, int sender) const;
    // Derivatives of the exact weights by the length, at one length, [outputs].
    std::vector<double> exact_slope(double length, int receiver, int sender) const;

private:
    // Hidden activations [count][hidden_stride] at lengths, and their derivatives at one length.
    std::vector<double> hidden(const std::vector<double>& lengths, int receiver, int sender) const;
    std::vector<double> hidden_slope(double length, int receiver, int sender) const;

    RadialSpec spec_;
    Radial<double> network_;
    std::vector<double> last_;  // [units][outputs]
    double step_, begin_;       // in square roots of lengths, for an r_max of 1
    int knots_, degree_, outputs_;
    // [rows()] positions, in steps, at which the spline equals the network; where a position is
    // repeated, their derivatives are equal as well.
    std::vector<double> positions_;
    // The pair of the last `prepare`, and the hidden activations [rows()][hidden_stride] at its
    // positions.
    mutable std::pair<int, int> pair_{-1, -1};
    mutable std::vector<double> hidden_;
};

// Groups of pairs of types that share a table, and where the tables that were built begin.
class TableGroups {
public:
    // `bytes`: size of the largest table.
    TableGroups(const RadialSpec& spec, const RadialSpline& spline, double bytes);
    void set_table_bytes(double bytes) { table_bytes_ = bytes; }

    // Returns the groups that edges need and that are not built. If they exceed the memory together
    // with those that are built, the latter are forgotten first, and built() is 0. Throws
    // EngineError if they exceed it alone. `types`: [nodes]; `receiver`, `sender`: [edges].
    std::vector<std::int32_t> missing(const std::int32_t* types, const std::int32_t* receiver,
                                      const std::int32_t* sender, std::int64_t edges,
                                      std::int64_t nodes);
    // A pair of types (receiver, sender) of a group.
    std::pair<int, int> representative(std::int32_t group) const {
        return representative_[static_cast<std::size_t>(group)];
    }
    // Records that the tables of groups were built, from row `row` on, with `rows` rows each.
    void add(const std::vector<std::int32_t>& groups, std::int64_t row, std::int64_t rows);

    int built() const { return built_; }
    bool complete() const { return static_cast<std::size_t>(built_) == first_row_.size(); }
    // The table of a pair of types.
    struct Place {
        std::int32_t group, first_row;  // -1: not built
        double first, inverse_step;     // position in the spline: (sqrt(r) - first) * inverse_step
        double r_max;                   // Å
    };
    Place place(int receiver, int sender) const {
        const Pair& pair = pairs_[static_cast<std::size_t>(receiver * num_types_ + sender)];
        return {pair.group, first_row_[static_cast<std::size_t>(pair.group)], pair.first,
                pair.inverse_step, pair.r_max};
    }

private:
    struct Pair {
        std::int32_t group = 0;
        double r_max = 0, first = 0, inverse_step = 0;  // see Place
    };
    bool all_built(const std::int32_t* types, std::int64_t nodes);

    int num_types_, built_ = 0;
    double table_bytes_, limit_;
    std::vector<Pair> pairs_;                          // [T][T]
    std::vector<std::pair<int, int>> representative_;  // [num_groups] receiver, sender
    std::vector<std::int32_t> first_row_;              // [num_groups]; -1: not built
    std::vector<char> wanted_, present_;               // [num_groups], [T]
};

template <typename T>
class RadialTable {
public:
    // `degree`: 3 for a device, or TABLE_STEPS<T> for look_up; then there are a sixth of the knots.
    RadialTable(const RadialSpec& spec, WeightColumns columns, int degree);

    // Builds the missing tables for edges; arguments as of TableGroups::missing.
    void require(const std::int32_t* types, const std::int32_t* receiver,
                 const std::int32_t* sender, std::int64_t edges, std::int64_t nodes);

    // [width / A][rows()][A], with A items of 64 bytes: coefficients, and the differences to those
    // of the next row (null in double precision).
    const T* data() const { return data_.data(); }
    const T* steps() const { return SINGLE ? steps_.data() : nullptr; }
    std::int64_t rows() const { return rows_; }
    int intervals() const { return spline_.intervals(); }  // of a table
    std::size_t bytes() const { return (data_.size() + steps_.size()) * sizeof(T); }
    int num_builds() const { return num_builds_; }  // number of changes of the tables
    bool complete() const { return groups_.complete(); }
    TableGroups::Place place(int receiver, int sender) const {
        return groups_.place(receiver, sender);
    }

    // Finds the first row [capacity] of each edge, and the factors [TABLE_STEPS<T>][capacity] of
    // the differences of rows in its weights and in their derivatives (see ConvBlock). The row is
    // one of zeros from r_max on and behind the last edge. False: an edge is too short for the
    // table.
    bool look_up(const RadialEdges& edges, std::int32_t* knot, T* basis, T* slope) const;

private:
    static constexpr bool SINGLE = sizeof(T) == 4;
    void build(const std::vector<std::int32_t>& groups);

    RadialSpline spline_;
    WeightColumns columns_;
    TableGroups groups_;
    AlignedArray<T> data_, steps_;
    std::int64_t rows_ = 0;
    int num_builds_ = 0;
};

}  // namespace mdcg
