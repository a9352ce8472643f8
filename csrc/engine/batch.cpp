#include "engine/batch.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

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

ConsecutiveSystems::ConsecutiveSystems(const Batch& from, std::int64_t first, std::int64_t end)
    : batch_(from) {
    const std::int64_t before = from.first_node[first];
    for (std::int64_t s = first; s < end; ++s) numbers_.push_back(s);
    for (std::int64_t s = first; s <= end; ++s) first_node_.push_back(from.first_node[s] - before);
    batch_.num_systems = end - first;
    batch_.first_node = first_node_.data();
    batch_.positions += 3 * before;
    batch_.types += before;
    if (from.cells != nullptr) batch_.cells += 9 * first;
    batch_.periodic += 3 * first;
    batch_.inputs += from.num_inputs * first;
    batch_.numbers = numbers_.data();
    batch_.first_there = from.first_node;
}

PickedSystems::PickedSystems(const Batch& from, std::vector<std::int64_t> numbers)
    : from_(from), numbers_(std::move(numbers)), first_node_{0} {
    const std::size_t count = numbers_.size();
    periodic_ = std::make_unique<bool[]>(3 * count);
    const auto append = [](auto& to, const auto* rows, std::int64_t first, std::int64_t count) {
        to.insert(to.end(), rows + first, rows + first + count);
    };
    for (std::size_t i = 0; i < count; ++i) {
        const std::int64_t s = numbers_[i], first = from.first_node[s];
        const std::int64_t nodes = from.first_node[s + 1] - first;
        first_node_.push_back(first_node_.back() + nodes);
        append(positions_, from.positions, 3 * first, 3 * nodes);
        append(types_, from.types, first, nodes);
        if (from.cells != nullptr) append(cells_, from.cells, 9 * s, 9);
        std::copy_n(from.periodic + 3 * s, 3, periodic_.get() + 3 * i);
        append(inputs_, from.inputs, from.num_inputs * s, from.num_inputs);
    }
    batch_ = from;
    batch_.num_systems = static_cast<std::int64_t>(count);
    batch_.first_node = first_node_.data();
    batch_.positions = positions_.data();
    batch_.types = types_.data();
    batch_.cells = from.cells != nullptr ? cells_.data() : nullptr;
    batch_.periodic = periodic_.get();
    batch_.inputs = inputs_.data();
    batch_.numbers = numbers_.data();
    batch_.first_there = from.first_node;
}

Results PickedSystems::wanted(const Results& results, int descriptor_width) {
    parts_ = {{&mdcg_results::energy, true, 1, {}},
              {&mdcg_results::virial, true, 9, {}},
              {&mdcg_results::energies, false, 1, {}},
              {&mdcg_results::forces, false, 3, {}},
              {&mdcg_results::virials, false, 9, {}},
              {&mdcg_results::descriptors, false, descriptor_width, {}}};
    Results found{};
    for (Part& part : parts_) {
        if (results.*part.field == nullptr) continue;
        const std::int64_t rows = part.by_system ? batch_.num_systems : batch_.num_nodes();
        part.rows.resize(size(std::max<std::int64_t>(part.width * rows, 1)));
        found.*part.field = part.rows.data();
    }
    return found;
}

void PickedSystems::store(const Results& results) const {
    for (const Part& part : parts_) {
        double* const to = results.*part.field;
        if (to == nullptr) continue;
        for (std::size_t i = 0; i < numbers_.size(); ++i) {
            const std::int64_t s = numbers_[i];
            const std::int64_t from =
                part.by_system ? static_cast<std::int64_t>(i) : first_node_[i];
            const std::int64_t count = part.by_system ? 1 : first_node_[i + 1] - first_node_[i];
            std::copy_n(part.rows.data() + part.width * from, part.width * count,
                        to + part.width * (part.by_system ? s : from_.first_node[s]));
        }
    }
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
    system.inputs = batch_->system(first_).inputs;
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
