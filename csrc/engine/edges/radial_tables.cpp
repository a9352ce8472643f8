#include "engine/edges/radial_tables.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "engine/error.hpp"
#include "engine/package/budget.hpp"
#include "engine/rows.hpp"

namespace mdcg {

namespace {
constexpr int COLUMNS = 256;  // columns that `write` computes at a time
}

WeightColumns hidden_columns(const RadialSpec& spec, std::int64_t stride) {
    WeightColumns found;
    for (int k = 0; k < spec.units(); ++k) found.columns.push_back(k);
    found.width = stride;
    return found;
}

RadialTables::RadialTables(const RadialSpec& spec, RadialFit fit, TableContent content,
                           double row_bytes)
    : fit_(std::move(fit)),
      content_(content),
      num_types_(spec.num_types),
      outputs_(spec.layers.back().out),
      row_bytes_(row_bytes),
      limit_(spec.table_bytes) {
    std::map<std::tuple<double, double, int, int>, std::int32_t> known;
    for (int i = 0; i < num_types_; ++i)
        for (int j = 0; j < num_types_; ++j) {
            const auto key = std::make_tuple(spec.pair_r_max(i, j), spec.pair_r_0(i, j),
                                             spec.receiver_table.empty() ? 0 : i,
                                             spec.sender_table.empty() ? 0 : j);
            const auto [found, is_new] = known.emplace(key, narrow(tables_.size()));
            table_of_.push_back(found->second);
            if (!is_new) continue;
            Table table{i, j, {}, {}};
            table.place.r_max = spec.pair_r_max(i, j);
            tables_.push_back(table);
        }
}

std::vector<int> RadialTables::missing(const std::int32_t* types, const std::int32_t* receiver,
                                       const std::int32_t* sender, std::int64_t edges,
                                       std::int64_t nodes) {
    available_ = true;
    std::vector<int> missing;
    if (complete() || all_built(types, nodes)) return missing;
    wanted_.assign(tables_.size(), 0);
    for (std::int64_t e = 0; e < edges; ++e) {
        const std::int32_t number =
            table_of_[size(types[receiver[e]] * num_types_ + types[sender[e]])];
        Table& table = tables_[size(number)];
        if (table.place.first_row != -1 || wanted_[size(number)]) continue;
        wanted_[size(number)] = 1;
        TablePlace& place = table.place;
        if (place.intervals < 0) {
            const TableGrid& grid = table.grid = fit_.choose(table.receiver, table.sender);
            place.intervals = grid.intervals;
            place.kink = grid.kink;
            place.first = grid.first;
            place.inverse_step = grid.inverse_step;
            largest_ = std::max(largest_, row_bytes_ * fit_.num_rows(grid));
        }
        available_ = available_ && place.intervals > 0;
        missing.push_back(number);
    }
    if (!available_) return {};
    const std::size_t count = size(built_) + missing.size();
    if (missing.empty() || count == 1 || largest_ * static_cast<double>(count) <= limit_)
        return missing;
    if (built_ > 0) {
        for (Table& table : tables_) table.place.first_row = -1;
        built_ = 0;
        return this->missing(types, receiver, sender, edges, nodes);
    }
    throw EngineError(
        ErrorKind::memory,
        "the system has " + std::to_string(missing.size()) +
            " different pairs of types, whose radial tables take " +
            memory_text(largest_ * static_cast<double>(missing.size())) +
            " in one layer, and the memory budget of the package leaves " + memory_text(limit_) +
            ": evaluate systems of fewer types, or (on CPUs) convert the checkpoint with "
            "mdcg-patch --exact");
}

void RadialTables::write(int table, const Write& write) const {
    poll_interrupt();
    const Table& of = tables_[size(table)];
    const std::vector<double> rows = fit_.rows(of.receiver, of.sender, of.grid);
    if (content_ == TableContent::kUnits) return write(0, fit_.units(), rows.data(), fit_.units());
    for (int start = 0; start < outputs_; start += COLUMNS) {
        const int count = std::min(COLUMNS, outputs_ - start);
        const PackedMatrix<double> matrix = fit_.last_layer(start, count);
        const std::int64_t stride = matrix.panels() * row_align<double>();
        AlignedArray<double> found(size(num_rows(table) * stride));
        simd<double>().gemm(num_rows(table), rows.data(), fit_.units(), matrix, found.data(),
                            stride, nullptr, false);
        write(start, count, found.data(), stride);
    }
}

void RadialTables::set_built(int table, std::int64_t first_row) {
    tables_[size(table)].place.first_row = narrow(first_row);
    ++built_;
}

// Whether each pair of types of nodes has a table. This is quicker than testing all edges.
bool RadialTables::all_built(const std::int32_t* types, std::int64_t nodes) {
    present_.assign(size(num_types_), 0);
    for (std::int64_t n = 0; n < nodes; ++n) present_[size(types[n])] = 1;
    for (int i = 0; i < num_types_; ++i)
        for (int j = 0; present_[size(i)] && j < num_types_; ++j)
            if (present_[size(j)] && place(i, j).first_row == -1) return false;
    return true;
}

}  // namespace mdcg
