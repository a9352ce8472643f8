#include <cmath>
#include <map>
#include <tuple>

#include "core/integers.hpp"
#include "engine/edges/radial_table.hpp"
#include "engine/error.hpp"
#include "engine/package/budget.hpp"

namespace mdcg {

TableGroups::TableGroups(const RadialSpec& spec, const RadialSpline& spline, double bytes)
    : num_types_(spec.num_types), table_bytes_(bytes), limit_(spec.table_bytes) {
    const int n = num_types_;
    std::map<std::tuple<double, double, int, int>, std::int32_t> groups;
    for (int i = 0; i < n; ++i)
        for (int j = 0; j < n; ++j) {
            const auto key = std::make_tuple(spec.pair_r_max(i, j), spec.pair_r_0(i, j),
                                             spec.receiver_table.empty() ? 0 : i,
                                             spec.sender_table.empty() ? 0 : j);
            const auto found = groups.emplace(key, narrow(representative_.size()));
            if (found.second) representative_.emplace_back(i, j);
            pairs_.push_back({found.first->second, spec.pair_r_max(i, j),
                              std::sqrt(spline.first(i, j)), 1.0 / spline.step(i, j)});
        }
    first_row_.assign(representative_.size(), -1);
}

std::vector<std::int32_t> TableGroups::missing(const std::int32_t* types,
                                               const std::int32_t* receiver,
                                               const std::int32_t* sender, std::int64_t edges,
                                               std::int64_t nodes) {
    std::vector<std::int32_t> missing;
    const auto too_many = [&](std::size_t count) {
        return table_bytes_ * static_cast<double>(count) > limit_ && count > 1;
    };
    if (complete() || all_built(types, nodes)) return missing;
    wanted_.assign(first_row_.size(), 0);
    for (std::int64_t e = 0; e < edges; ++e) {
        const Pair& pair = pairs_[size(types[receiver[e]] * num_types_ + types[sender[e]])];
        const auto group = size(pair.group);
        if (first_row_[group] != -1 || wanted_[group]) continue;
        wanted_[group] = 1;
        missing.push_back(pair.group);
    }
    if (!too_many(size(built_) + missing.size()) || missing.empty()) return missing;
    if (built_ > 0) {
        first_row_.assign(first_row_.size(), -1);
        built_ = 0;
        return this->missing(types, receiver, sender, edges, nodes);
    }
    throw EngineError(
        ErrorKind::memory,
        "the system has " + std::to_string(missing.size()) +
            " different pairs of types, whose radial tables take " +
            memory_text(table_bytes_ * static_cast<double>(missing.size())) +
            " in one layer, and the memory budget of the package leaves " + memory_text(limit_) +
            ": evaluate systems of fewer types, or (on CPUs and in float32) convert the checkpoint "
            "with mdcg-patch --exact");
}

void TableGroups::add(const std::vector<std::int32_t>& groups, std::int64_t row,
                      std::int64_t rows) {
    for (const std::int32_t group : groups) {
        first_row_[size(group)] = narrow(row);
        row += rows;
    }
    built_ += static_cast<int>(groups.size());
}

// Whether there is a table for every pair of types of nodes. This is faster than a loop over edges.
bool TableGroups::all_built(const std::int32_t* types, std::int64_t nodes) {
    present_.assign(size(num_types_), 0);
    for (std::int64_t n = 0; n < nodes; ++n) present_[size(types[n])] = 1;
    for (std::size_t i = 0; i < present_.size(); ++i)
        for (std::size_t j = 0; present_[i] && j < present_.size(); ++j)
            if (present_[j] && first_row_[size(pairs_[i * present_.size() + j].group)] == -1)
                return false;
    return true;
}

}  // namespace mdcg
