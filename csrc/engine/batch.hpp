// Many systems in one evaluation.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "engine/graph.hpp"
#include "engine/neighbors/geometry_check.hpp"
#include "engine/neighbors/neighbor_list.hpp"
#include "mdcg.h"

namespace mdcg {

// The results that are wanted. Those with null pointers are not computed. `size` is not used.
using Results = mdcg_results;

// Systems without ghosts, each open or periodic, that do not interact. System s has the nodes
// first_node[s] .. first_node[s + 1] - 1.
struct Batch {
    std::int64_t num_systems = 0;
    const std::int64_t* first_node = nullptr;  // [num_systems + 1]
    const double* positions = nullptr;         // [num_nodes][3]
    const std::int32_t* types = nullptr;       // [num_nodes]
    const double* cells = nullptr;             // [num_systems][3][3]; null: all are open
    const bool* periodic = nullptr;            // [num_systems][3]
    bool on_device = false;  // positions and results are in the memory of the model's device
    const double* inputs = nullptr;  // [num_systems][num_inputs], see System; null: all defaults
    std::int64_t num_inputs = 0;
    // Of systems that were picked from another batch: their numbers there.
    const std::int64_t* numbers = nullptr;      // [num_systems]; null: as here
    const std::int64_t* first_there = nullptr;  // first_node of the other batch

    std::int64_t num_nodes() const { return num_systems > 0 ? first_node[num_systems] : 0; }
    const double* cell(std::int64_t s) const { return cells != nullptr ? cells + 9 * s : nullptr; }
    // The skin is 0, because lists are made for this evaluation alone.
    CellSystem system(std::int64_t s) const {
        const std::int64_t first = first_node[s];
        return {first_node[s + 1] - first,
                positions + 3 * first,
                types + first,
                cell(s),
                periodic + 3 * s,
                0,
                nullptr,
                0,
                inputs != nullptr ? inputs + num_inputs * s : nullptr};
    }
    // The number of a system, and its first node, for messages.
    std::int64_t number(std::int64_t s) const { return numbers != nullptr ? numbers[s] : s; }
    std::int64_t first_named(std::int64_t s) const {
        return numbers != nullptr ? first_there[numbers[s]] : first_node[s];
    }
};

// Throws EngineError if first_node decreases or a type is out of range.
void check_batch(const Batch& batch, int num_types);

// The part of a batch's results that belongs to one system. A batch has an energy and a virial for
// each system.
Results results_of(const Results& results, const Batch& batch, std::int64_t system,
                   int descriptor_width);

// Calls a function that works on one system. If it throws an error about nodes, the sentence then
// names the system, and numbers nodes as the batch does.
template <typename Function>
void in_system(const Batch& batch, std::int64_t system, const Function& function) {
    const auto moved = [&](const Sentence& sentence) {
        return sentence.moved("system " + std::to_string(batch.number(system)) + " of the batch: ",
                              batch.first_named(system));
    };
    try {
        function();
    } catch (const GeometryError& error) {
        throw GeometryError(moved(error.sentence));
    } catch (const EngineError& error) {
        if (!error.sentence.names_nodes()) throw;
        throw EngineError(error.kind(), moved(error.sentence));
    }
}

// Results of one kind: a row of `width` items for each system, or for each node.
struct ResultRows {
    double* Results::* field;
    bool by_system;
    std::int64_t width;
};

// Some systems of a batch, in ascending order, as a batch of their own. Systems that follow each
// other stay where they are; others are copied, which batches in the memory of a device cannot be.
class PickedSystems {
public:
    PickedSystems(const Batch& from, std::vector<std::int64_t> numbers);
    const Batch& batch() const { return batch_; }
    // What an evaluation of batch() must compute for `results` of the other batch; store() copies
    // it there.
    Results wanted(const Results& results, int descriptor_width);
    void store(const Results& results) const;

private:
    bool follow_each_other() const;
    void copy();

    const Batch& from_;
    std::vector<std::int64_t> numbers_, first_node_;
    std::vector<double> positions_, cells_, inputs_;
    std::vector<std::int32_t> types_;
    std::unique_ptr<bool[]> periodic_;
    Batch batch_;
    std::vector<std::pair<ResultRows, std::vector<double>>> copies_;  // of results
};

// Several systems of a batch, joined into one with edges that the host finds.
class JoinedSystems {
public:
    explicit JoinedSystems(double r_max) : neighbors_(r_max, 0) {}
    // Divides a batch into groups of systems that have few nodes in total. Returns the first system
    // of each group, and the end of the last. Unless it `joins`, each system is a group.
    static std::vector<std::int64_t> cut(const Batch& batch, bool joins);
    // Joins the systems first .. end - 1. Throws GeometryError.
    void join(const Batch& batch, std::int64_t first, std::int64_t end, int threads);
    // The joined system, valid until the next call of join().
    System system() const;
    // What an evaluation of system() must compute for `results` of the batch. The evaluation writes
    // rows of nodes there; store() sums energies and virials of systems.
    Results wanted(const Results& results, int descriptor_width);
    void store(const Results& results) const;
    // A sentence about nodes of system(), about the same nodes of the batch.
    Sentence of_batch(const Sentence& sentence) const;

private:
    NeighborList neighbors_;
    const Batch* batch_ = nullptr;
    std::int64_t first_ = 0, end_ = 0;
    std::vector<std::int32_t> sender_, receiver_;  // [num_edges]
    std::vector<double> shifts_;                   // [num_edges][3]
    std::vector<double> energies_, virials_;       // [num_nodes], [num_nodes][9]
};

}  // namespace mdcg
