// Many systems in one evaluation.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/graph.hpp"
#include "engine/neighbors/geometry_check.hpp"
#include "engine/neighbors/neighbor_list.hpp"
#include "mdcg.h"

namespace mdcg {

// What is wanted; null pointers are left out, and nothing is computed for them. Without `size`.
using Results = mdcg_results;

// Systems without ghosts, each open or periodic, that do not interact.
struct Batch {
    std::int64_t num_systems = 0;
    // System s has nodes first_node[s] .. first_node[s + 1] - 1.
    const std::int64_t* first_node = nullptr;  // [num_systems + 1]
    const double* positions = nullptr;         // [num_nodes][3]
    const std::int32_t* types = nullptr;       // [num_nodes]
    const double* cells = nullptr;             // [num_systems][3][3]; null: all are open
    const bool* periodic = nullptr;            // [num_systems][3]
    bool on_device = false;  // positions and results are in the memory of the model's device

    std::int64_t num_nodes() const { return num_systems > 0 ? first_node[num_systems] : 0; }
    const double* cell(std::int64_t s) const { return cells != nullptr ? cells + 9 * s : nullptr; }
    // Its lists are made for this evaluation alone.
    CellSystem system(std::int64_t s) const {
        const std::int64_t first = first_node[s];
        return {first_node[s + 1] - first,
                positions + 3 * first,
                types + first,
                cell(s),
                periodic + 3 * s,
                0,
                nullptr};
    }
};

// Throws EngineError: numbers of nodes that fall, types out of range.
void check_batch(const Batch& batch, int num_types);

// Where the results of one system go; in those of a batch energy and virial have a row per system.
Results results_of(const Results& results, const Batch& batch, std::int64_t system,
                   int descriptor_width);

// Runs a function on one system. A GeometryError then names the system, and nodes as the batch
// numbers them.
template <typename Function>
void in_system(const Batch& batch, std::int64_t system, const Function& function) {
    try {
        function();
    } catch (const GeometryError& error) {
        throw GeometryError(error.sentence.moved(
            "system " + std::to_string(system) + " of the batch: ", batch.first_node[system]));
    }
}

// Some systems of a batch as one, with edges that the host has found.
class JoinedSystems {
public:
    explicit JoinedSystems(double r_max) : neighbors_(r_max, 0) {}
    // Where groups of systems begin that are small in all, and the end of the last.
    static std::vector<std::int64_t> cut(const Batch& batch);
    // Throws GeometryError.
    void join(const Batch& batch, std::int64_t first, std::int64_t end, int threads);
    // Of the last call; valid until the next one.
    System system() const;
    // Stores the results of an evaluation of it: rows of nodes are where they belong, and energies
    // and virials are summed.
    Results wanted(const Results& results, int descriptor_width);
    void store(const Results& results) const;

private:
    NeighborList neighbors_;
    const Batch* batch_ = nullptr;
    std::int64_t first_ = 0, end_ = 0;
    std::vector<std::int32_t> sender_, receiver_;
    std::vector<double> shifts_, energies_, virials_;
};

}  // namespace mdcg
