#include "engine/batch.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Nodes of a group that a thread evaluates at once: few enough for its caches.
constexpr std::int64_t JOINED_NODES = 48;

}  // namespace

void check_batch(const Batch& batch, int num_types) {
    for (std::int64_t s = 0; s < batch.num_systems; ++s) {
        const std::int64_t first = batch.first_node[s], end = batch.first_node[s + 1];
        if (end < first || (s == 0 && first != 0))
            bad_argument("first_node[" + std::to_string(s) + "] is " + std::to_string(first) +
                         " and the next one " + std::to_string(end) +
                         ", expected numbers from 0 on that do not fall");
        if (end - first > std::numeric_limits<std::int32_t>::max())
            bad_argument("system " + std::to_string(s) + " of the batch has " +
                         std::to_string(end - first) + " nodes, expected at most 2^31 - 1");
    }
    check_types(batch.types, batch.num_nodes(), num_types);
}

Results results_of(const Results& results, const Batch& batch, std::int64_t system,
                   int descriptor_width) {
    const std::int64_t first = batch.first_node[system];
    const auto at = [](double* rows, std::int64_t items) {
        return rows != nullptr ? rows + items : nullptr;
    };
    Results found = results;
    found.energy = at(results.energy, system);
    found.virial = at(results.virial, 9 * system);
    found.energies = at(results.energies, first);
    found.forces = at(results.forces, 3 * first);
    found.virials = at(results.virials, 9 * first);
    found.descriptors = at(results.descriptors, descriptor_width * first);
    return found;
}

std::vector<std::int64_t> JoinedSystems::cut(const Batch& batch, bool joins) {
    std::vector<std::int64_t> found{0};
    for (std::int64_t s = 1; s < batch.num_systems; ++s)
        if (!joins || batch.first_node[s + 1] - batch.first_node[found.back()] > JOINED_NODES)
            found.push_back(s);
    if (batch.num_systems > 0) found.push_back(batch.num_systems);
    return found;
}

void JoinedSystems::join(const Batch& batch, std::int64_t first, std::int64_t end, int threads) {
    batch_ = &batch;
    first_ = first;
    end_ = end;
    sender_.clear();
    receiver_.clear();
    shifts_.clear();
    for (std::int64_t s = first; s < end; ++s) {
        const CellSystem system = batch.system(s);
        in_system(batch, s, [&] {
            neighbors_.update(system.num_nodes, system.positions, system.cell, system.periodic,
                              threads);
        });
        const std::int32_t before = narrow(batch.first_node[s] - batch.first_node[first]);
        for (const std::int32_t node : neighbors_.sender()) sender_.push_back(before + node);
        for (const std::int32_t node : neighbors_.receiver()) receiver_.push_back(before + node);
        const std::vector<double>& shifts = neighbors_.shifts();
        shifts_.insert(shifts_.end(), shifts.begin(), shifts.end());
    }
}

System JoinedSystems::system() const {
    const std::int64_t first = batch_->first_node[first_];
    System system;
    system.num_local = system.num_nodes = batch_->first_node[end_] - first;
    system.positions = batch_->positions + 3 * first;
    system.types = batch_->types + first;
    system.num_edges = static_cast<std::int64_t>(sender_.size());
    system.sender = sender_.data();
    system.receiver = receiver_.data();
    system.shifts = shifts_.data();
    return system;
}

Results JoinedSystems::wanted(const Results& results, int descriptor_width) {
    const std::size_t nodes = size(batch_->first_node[end_] - batch_->first_node[first_]);
    Results found = results_of(results, *batch_, first_, descriptor_width);
    if (results.energy != nullptr && results.energies == nullptr) {
        energies_.resize(nodes);
        found.energies = energies_.data();
    }
    if (results.virial != nullptr && results.virials == nullptr) {
        virials_.resize(9 * nodes);
        found.virials = virials_.data();
    }
    found.energy = found.virial = nullptr;
    return found;
}

void JoinedSystems::store(const Results& results) const {
    const std::int64_t before = batch_->first_node[first_];
    const auto sum = [&](double* sums, const double* all, const std::vector<double>& own,
                         std::int64_t width) {
        if (sums == nullptr) return;
        const double* const rows = all != nullptr ? all + width * before : own.data();
        for (std::int64_t s = first_; s < end_; ++s) {
            std::fill_n(sums + width * s, width, 0.0);
            for (std::int64_t n = batch_->first_node[s]; n < batch_->first_node[s + 1]; ++n)
                for (std::int64_t i = 0; i < width; ++i)
                    sums[width * s + i] += rows[width * (n - before) + i];
        }
    };
    sum(results.energy, results.energies, energies_, 1);
    sum(results.virial, results.virials, virials_, 9);
}

}  // namespace mdcg
