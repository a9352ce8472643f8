// The tables of one radial network: which pairs of types share a table, its number of intervals,
// and where it begins if it was built. CPUs and GPUs store the tables, each in its own layout.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/edges/radial_fit.hpp"

namespace mdcg {

// Columns of weights: item k is in column columns[k] of a row of `width` items, which is a multiple
// of 64 bytes.
struct WeightColumns {
    std::vector<std::int32_t> columns;
    std::int64_t width = 0;
};

// Columns of hidden units, for tables of units instead of weights.
WeightColumns hidden_columns(const RadialSpec& spec, std::int64_t stride);

enum class TableContent { kWeights, kUnits };

// The table of a pair of types. Interval coordinate of a length: (sqrt(length) - first) *
// inverse_step. Weights of edges of r_max or more are zero.
struct TablePlace {
    std::int32_t first_row = -1;  // -1: not built
    int intervals = -1;           // -1: not chosen; 0: no table is exact enough
    int kink = 0;                 // interval from which on splines are others
    double first = 0, inverse_step = 0, r_max = 0;
};

class RadialTables {
public:
    // `row_bytes`: bytes that the caller needs for a row of a fit.
    RadialTables(const RadialSpec& spec, RadialFit fit, TableContent content, double row_bytes);

    // Returns the numbers of the tables that the pairs of types (receiver, sender) of edges need
    // and that are not built. If they do not fit into the limit together with the tables that are
    // built, it drops all tables first, so that built() is 0. Throws EngineError if they do not fit
    // alone.
    std::vector<int> missing(const std::int32_t* types, const std::int32_t* receiver,
                             const std::int32_t* sender, std::int64_t edges, std::int64_t nodes);
    // After missing(): whether there is a table for all pairs of types of the edges.
    bool available() const { return available_; }

    // Calls write(column, count, rows, stride) for a few columns of a table at a time, where
    // rows [num_rows][stride] are RadialFit::rows times the last layer.
    using Write = std::function<void(int column, int count, const double* rows, std::int64_t)>;
    void write(int table, const Write& write) const;
    int num_rows(int table) const {
        return fit_.num_rows(tables_[static_cast<std::size_t>(table)].grid);
    }
    int intervals(int table) const {
        return tables_[static_cast<std::size_t>(table)].place.intervals;
    }
    // Notes that a table has been built, and begins at `first_row`.
    void set_built(int table, std::int64_t first_row);

    int built() const { return built_; }
    bool complete() const { return static_cast<std::size_t>(built_) == tables_.size(); }
    const TablePlace& place(int receiver, int sender) const {
        const auto pair = static_cast<std::size_t>(receiver * num_types_ + sender);
        return tables_[static_cast<std::size_t>(table_of_[pair])].place;
    }

private:
    struct Table {
        int receiver, sender;  // types that it is made for
        TableGrid grid;
        TablePlace place;
    };
    bool all_built(const std::int32_t* types, std::int64_t nodes);

    RadialFit fit_;
    TableContent content_;
    int num_types_, outputs_, built_ = 0;
    double row_bytes_, limit_, largest_ = 0;  // largest: bytes of a table
    bool available_ = true;
    std::vector<std::int32_t> table_of_;  // [T][T]
    std::vector<Table> tables_;
    std::vector<char> wanted_, present_;
};

}  // namespace mdcg
