// Tables of all weights of an edge as functions of its length, per pair of types: B-splines through
// the exact network's values, with its derivative at both ends. On CPUs they are of degree 5 in
// single precision and 9 in double, where they agree with the network to rounding: a high degree
// needs few knots, and such a table stays in the caches. On GPUs, where single precision alone uses
// them, they are cubic.
//
// Knots are uniform in the square root of the length: weights bend most where edges are short, and
// more knots than needed would cost accuracy, as a derivative's rounding error grows with them.
//
// Between the knots the spline is the energy: forces are its exact derivative. In single precision
// the differences of coefficients are kept beside them, as taken in double: the derivative would
// otherwise lose the digits that neighbouring coefficients have in common. Edges shorter than
// first() are not in the table; the exact network serves them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/edges/radial.hpp"
#include "engine/ops/conv_kernel.hpp"
#include "engine/rows.hpp"

namespace mdcg {

// Columns of weights: item k stands at padded column columns[k] of `width` (a multiple of 64
// bytes).
struct WeightColumns {
    std::vector<std::int32_t> columns;
    std::int64_t width = 0;
};

// These two describe a table of hidden units instead of weights: its last layer copies the units,
// and its bias is the unit of constant 1. A spline is linear in the values that it interpolates, so
// that the network's own last layer turns a table of units into one of weights.
RadialSpec hidden_spec(RadialSpec spec);
WeightColumns hidden_columns(const RadialSpec& spec, std::int64_t stride);

// Spline through the exact network for one pair of types, in double.
class RadialSpline {
public:
    // `degree`: odd. `knots`: intervals from r_max / 16 to r_max; there are more of them before.
    RadialSpline(const RadialSpec& spec, int knots, int degree);

    double first(int receiver, int sender) const;  // shortest length in the table
    double step(int receiver, int sender) const;   // between knots, in square roots of lengths
    int intervals() const { return knots_; }
    int rows() const { return knots_ + degree_; }

    // Coefficients of the given columns of weights, [rows()][count]: interval i has those from i to
    // i + degree. Several threads may fit after `prepare` of the pair.
    void fit(int receiver, int sender, int column, int count, double* coefficients) const;
    void prepare(int receiver, int sender) const;
    // Exact weights at lengths, [count][outputs].
    std::vector<double> exact(const std::vector<double>& lengths, int receiver, int sender) const;
    // Derivatives of the exact weights by the length, at one length, [outputs].
    std::vector<double> exact_slope(double length, int receiver, int sender) const;

private:
    // Hidden activations [count][hidden_stride] at lengths; their derivative at one length.
    std::vector<double> hidden(const std::vector<double>& lengths, int receiver, int sender) const;
    std::vector<double> hidden_slope(double length, int receiver, int sender) const;

    RadialSpec spec_;
    Radial<double> network_;
    std::vector<double> last_;  // [units][outputs]
    double step_, begin_;       // for r_max 1
    int knots_, degree_, outputs_;
    // [rows()] where spline and network meet, in steps; their derivatives meet at those repeated.
    std::vector<double> places_;
    // of the pair that was asked for last
    mutable std::pair<int, int> pair_{-1, -1};
    mutable std::vector<double> hidden_;  // at the places
};

// Which pairs of types share a table, and where the tables are that were built.
class TableGroups {
public:
    // `bytes`: of a table, or of the largest.
    TableGroups(const RadialSpec& spec, const RadialSpline& spline, double bytes);
    void set_table_bytes(double bytes) { table_bytes_ = bytes; }

    // Groups that the pairs of types (receiver, sender) of edges need and that are not built. Where
    // these are too many beside those that are built, all are forgotten first, and built() is 0;
    // throws EngineError where they are too many alone.
    std::vector<std::int32_t> missing(const std::int32_t* types, const std::int32_t* receiver,
                                      const std::int32_t* sender, std::int64_t edges,
                                      std::int64_t nodes);
    // Types (receiver, sender) that a group's table is made for.
    std::pair<int, int> representative(std::int32_t group) const {
        return representative_[static_cast<std::size_t>(group)];
    }
    // Their tables have been built, one after the other from `row` on, of `rows` each.
    void add(const std::vector<std::int32_t>& groups, std::int64_t row, std::int64_t rows);

    int built() const { return built_; }
    bool complete() const { return static_cast<std::size_t>(built_) == first_row_.size(); }
    // Of a pair of types: its group, the first row of its table (-1: not built), what turns the
    // square root of a length into a place of the spline, and the longest length.
    struct Place {
        std::int32_t group, first_row;
        double first, inverse_step, r_max;
    };
    Place place(int receiver, int sender) const {
        const Pair& pair = pairs_[static_cast<std::size_t>(receiver * num_types_ + sender)];
        return {pair.group, first_row_[static_cast<std::size_t>(pair.group)], pair.first,
                pair.inverse_step, pair.r_max};
    }

private:
    struct Pair {
        std::int32_t group = 0;
        double r_max = 0, first = 0, inverse_step = 0;  // the latter two of square roots
    };
    bool all_built(const std::int32_t* types, std::int64_t nodes);

    int num_types_, built_ = 0;
    double table_bytes_, limit_;
    std::vector<Pair> pairs_;                          // [T][T]
    std::vector<std::pair<int, int>> representative_;  // of a group: receiver, sender
    std::vector<std::int32_t> first_row_;              // of a group; -1: not built
    std::vector<char> wanted_, present_;
};

template <typename T>
class RadialTable {
public:
    // `degree`: TABLE_STEPS<T> for look_up, on a sixth of the knots, or 3 for a device.
    RadialTable(const RadialSpec& spec, WeightColumns columns, int degree);

    // Builds what the pairs of types (receiver, sender) of the edges need and is not there yet.
    void require(const std::int32_t* types, const std::int32_t* receiver,
                 const std::int32_t* sender, std::int64_t edges, std::int64_t nodes);

    // [width / A][rows()][A]: coefficients, and by how much the next one differs; null in double.
    const T* data() const { return data_.data(); }
    const T* steps() const { return SINGLE ? steps_.data() : nullptr; }
    std::int64_t rows() const { return rows_; }
    int intervals() const { return spline_.intervals(); }  // of a table
    std::size_t bytes() const { return (data_.size() + steps_.size()) * sizeof(T); }
    int num_builds() const { return num_builds_; }  // so often have tables changed
    bool complete() const { return groups_.complete(); }
    TableGroups::Place place(int receiver, int sender) const {
        return groups_.place(receiver, sender);
    }

    // First row of each edge, [capacity], and what its steps count, [TABLE_STEPS<T>][capacity], in
    // the weight and in its derivative (ConvBlock); a row of zeros from r_max on and for unused
    // edges. False: an edge is too short for the table.
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
