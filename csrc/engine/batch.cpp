#include "engine/batch.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Nodes of a group that a thread evaluates at once: few enough for its caches.
constexpr std::int64_t JOINED_NODES = 48;

std::array<ResultRows, 6> result_rows(int descriptor_width) {
    return {{{&Results::energy, true, 1},
             {&Results::virial, true, 9},
             {&Results::energies, false, 1},
             {&Results::forces, false, 3},
             {&Results::virials, false, 9},
             {&Results::descriptors, false, descriptor_width}}};
}

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
    Results found = results;
    for (const ResultRows& rows : result_rows(descriptor_width))
        if (found.*rows.field != nullptr)
            found.*rows.field += rows.width * (rows.by_system ? system : batch.first_node[system]);
    return found;
}

PickedSystems::PickedSystems(const Batch& from, std::vector<std::int64_t> numbers)
    : from_(from), numbers_(std::move(numbers)), first_node_{0}, batch_(from) {
    for (const std::int64_t s : numbers_)
        first_node_.push_back(first_node_.back() + from.first_node[s + 1] - from.first_node[s]);
    batch_.num_systems = static_cast<std::int64_t>(numbers_.size());
    batch_.first_node = first_node_.data();
    batch_.numbers = numbers_.data();
    batch_.first_there = from.first_node;
    if (!follow_each_other()) {
        copy();
        return;
    }
    const CellSystem first = from.system(numbers_.front());
    batch_.positions = first.positions;
    batch_.types = first.types;
    batch_.cells = first.cell;
    batch_.periodic = first.periodic;
    batch_.inputs = first.inputs;
}

bool PickedSystems::follow_each_other() const {
    return numbers_.back() - numbers_.front() + 1 == batch_.num_systems;
}

void PickedSystems::copy() {
    const std::size_t count = numbers_.size();
    periodic_ = std::make_unique<bool[]>(3 * count);
    const auto append = [](auto& to, const auto* rows, std::int64_t items) {
        if (rows != nullptr) to.insert(to.end(), rows, rows + items);
    };
    for (std::size_t i = 0; i < count; ++i) {
        const CellSystem system = from_.system(numbers_[i]);
        append(positions_, system.positions, 3 * system.num_nodes);
        append(types_, system.types, system.num_nodes);
        append(cells_, system.cell, 9);
        append(inputs_, system.inputs, from_.num_inputs);
        std::copy_n(system.periodic, 3, periodic_.get() + 3 * i);
    }
    batch_.positions = positions_.data();
    batch_.types = types_.data();
    batch_.cells = from_.cells != nullptr ? cells_.data() : nullptr;
    batch_.periodic = periodic_.get();
    batch_.inputs = inputs_.data();
}

Results PickedSystems::wanted(const Results& results, int descriptor_width) {
    if (follow_each_other()) return results_of(results, from_, numbers_.front(), descriptor_width);
    Results found{};
    for (const ResultRows& rows : result_rows(descriptor_width)) {
        if (results.*rows.field == nullptr) continue;
        const std::int64_t count = rows.by_system ? batch_.num_systems : batch_.num_nodes();
        copies_.emplace_back(rows, size(std::max<std::int64_t>(rows.width * count, 1)));
        found.*rows.field = copies_.back().second.data();
    }
    return found;
}

void PickedSystems::store(const Results& results) const {
    for (const auto& [rows, copy] : copies_)
        for (std::size_t i = 0; i < numbers_.size(); ++i) {
            const std::int64_t s = numbers_[i];
            const std::int64_t from =
                rows.by_system ? static_cast<std::int64_t>(i) : first_node_[i];
            const std::int64_t count = rows.by_system ? 1 : first_node_[i + 1] - first_node_[i];
            std::copy_n(
                copy.data() + rows.width * from, rows.width * count,
                results.*rows.field + rows.width * (rows.by_system ? s : from_.first_node[s]));
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

Sentence JoinedSystems::of_batch(const Sentence& sentence) const {
    std::vector<std::int64_t> names;
    for (std::int64_t s = first_; s < end_; ++s)
        for (std::int64_t n = batch_->first_node[s]; n < batch_->first_node[s + 1]; ++n)
            names.push_back(batch_->first_named(s) + n - batch_->first_node[s]);
    return sentence.named(names);
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
