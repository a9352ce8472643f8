// The input of an evaluation, and its edges sorted by receiver and by blocks of senders.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/neighbors/list_numbers.hpp"

namespace mdcg {

// The input of one evaluation. Nodes 0 .. num_local-1 receive; the others (ghosts) only send.
struct System {
    std::int64_t num_local = 0, num_nodes = 0;
    const double* positions = nullptr;    // [num_nodes][3]
    const std::int32_t* types = nullptr;  // [num_nodes]
    std::int64_t num_edges = 0;
    const std::int32_t* sender = nullptr;    // [num_edges]
    const std::int32_t* receiver = nullptr;  // [num_edges] < num_local
    const double* shifts = nullptr;          // [num_edges][3] Å; null: none, or see images
    // The model does not read edges or shifts again if it holds a list with these numbers.
    ListNumbers list;
    bool same_edges = false, same_shifts = false;  // it holds them; set by Model::evaluate
    // The reverse of each edge between local nodes is also there, with the opposite vector.
    bool reversed = false;
    // Instead of shifts: edge e has the shift image_shifts[images[e]].
    const std::int32_t* images = nullptr;  // [num_edges] < num_images
    std::int64_t num_images = 0;
    const double* image_shifts = nullptr;  // [num_images][3] Å
    // A device finds the edges: pairs of a local node with any node or copy of a node that are not
    // longer than r_max plus the skin. Copy c is at the position of copy_node[c] minus
    // image_shifts[copy_image[c]]; the first row of image_shifts is zero.
    bool make_edges = false;
    double skin = 0;  // Å
    std::int64_t num_copies = 0;
    const std::int32_t* copy_node = nullptr;   // [num_copies] < num_nodes
    const std::int32_t* copy_image = nullptr;  // [num_copies] < num_images
    // The last num_inner local nodes have no ghost as a neighbour, skin included. On devices they
    // are computed while rows of ghosts travel.
    std::int64_t num_inner = 0;
    // Forces and virials are derivatives of the sum of energies times these weights; null: 1.
    const double* energy_weights = nullptr;  // [num_local]
    // The features of ghosts that depend on positions are zero, and no communicator is needed.
    bool empty_ghosts = false;
    // For operations on the system, beside its edges.
    const double* cell = nullptr;    // [3][3] Å, rows are vectors; null: an open system
    const bool* periodic = nullptr;  // [3], if there is a cell
    // [num_inputs] of the model, NaN: the default; null: all defaults
    const double* inputs = nullptr;
    // [3][3] whose waves long-range sums go over; null: those of `cell`. Set by Model.
    const double* waves_cell = nullptr;

    // The shift [3] of an edge; null: none.
    const double* shift(std::int64_t edge) const {
        if (images != nullptr) return image_shifts + 3 * static_cast<std::int64_t>(images[edge]);
        return shifts != nullptr ? shifts + 3 * edge : nullptr;
    }
};

// An open or periodic system without ghosts, whose edges are still to be found. The last num_outer
// nodes have no energies; like ghosts they only send, and their features count as zero.
struct CellSystem {
    std::int64_t num_nodes = 0;
    const double* positions = nullptr;       // [num_nodes][3]
    const std::int32_t* types = nullptr;     // [num_nodes]
    const double* cell = nullptr;            // [3][3] Å, rows are vectors; null: an open system
    const bool* periodic = nullptr;          // [3]
    double skin = 0;                         // Å
    const double* energy_weights = nullptr;  // [num_local()]; see System
    std::int64_t num_outer = 0;
    const double* inputs = nullptr;      // [num_inputs]; see System
    const double* waves_cell = nullptr;  // see System

    std::int64_t num_local() const { return num_nodes - num_outer; }
};

// Throws EngineError (ErrorKind::argument) naming the first of `index` [count] that is negative or
// not less than `limit`.
void check_range(const std::int32_t* index, std::int64_t count, std::int64_t limit,
                 const std::string& name);
// Throws EngineError naming the first type that is out of range.
void check_types(const std::int32_t* types, std::int64_t num_nodes, int num_types);

// The edges of a system. Nodes get new numbers, so that neighbours are close in memory; all members
// use the new numbers, and `node` maps them to the given ones. Local nodes stay before ghosts.
//
// The edges of a list with a skin are sorted once. Every update keeps those not longer than r_max,
// in the same order.
struct Graph {
    std::int64_t num_local = 0, num_nodes = 0, num_edges = 0;
    std::int64_t nodes_per_block = 0;  // senders of a block, and receivers of a chunk

    // Edges sorted by receiver.
    std::vector<std::int64_t> row_ptr;   // [num_local + 1]
    std::vector<std::int32_t> sender;    // [num_edges]
    std::vector<std::int32_t> receiver;  // [num_edges]
    std::vector<double> vec;             // [num_edges][3] pos[receiver] - pos[sender] + shift, Å

    // Edges sorted by block of senders, and by receiver within a block.
    std::vector<std::int64_t> block_ptr;   // [num_blocks + 1]
    std::vector<std::int32_t> block_edge;  // [num_edges] number in the order above

    std::vector<std::int32_t> types;  // [num_nodes]
    std::vector<std::int32_t> node;   // [num_nodes] number of the node in the given system

    std::int64_t num_blocks() const { return static_cast<std::int64_t>(block_ptr.size()) - 1; }

    // Takes the edges of a system. Nodes keep their numbers unless `reorder`. Throws EngineError
    // that names the first index out of range. Allocates no memory unless a size grows.
    void update(const System& system, double r_max, int num_types, std::int64_t nodes_per_block,
                bool reorder, int threads);

    // For devices, which keep all edges and have no blocks: updates only the order and the types.
    // Returns whether the order or a type has changed.
    bool update_order(const System& system, double r_max, int num_types, bool reorder);
    // For a list that a device has made: there are no edges here, and the device sets `node`.
    void forget_edges(std::int64_t local, std::int64_t nodes, std::int64_t edges);
    // Copies positions [num_nodes][3] in the order of the graph. Throws EngineError if one is not
    // finite.
    void gather_positions(const System& system, double* positions, int threads) const;
    // Copies numbers of local nodes in the order of the graph.
    void gather_local(const double* given, std::vector<double>& found) const {
        found.resize(static_cast<std::size_t>(num_local));
        for (std::size_t n = 0; n < found.size(); ++n) found[n] = given[node[n]];
    }
    const double* positions() const { return positions_.data(); }  // [num_nodes][3] Å
    // All edges of the list by receiver.
    const std::vector<std::int64_t>& all_row_ptr() const { return all_row_ptr_; }  // [num_local+1]
    const std::vector<std::int32_t>& all_sender() const { return all_sender_; }    // [all edges]
    const std::vector<std::int32_t>& all_edge() const { return all_edge_; }  // number in the system

    std::size_t bytes() const;

private:
    bool take(const System& system, double r_max, int num_types, std::int64_t block, bool reorder);
    void order(const System& system);
    void filter(const System& system, double r_max, int threads);

    // All edges of the list, skin included.
    std::vector<std::int32_t> new_number_;                   // [num_nodes] by number in the system
    std::vector<std::int64_t> all_row_ptr_, all_block_ptr_;  // [num_local + 1], [num_blocks + 1]
    std::int64_t num_images_ = -1;              // images are below this number; -1: not checked
    bool shifted_ = false;                      // whether the list had shifts
    bool ordered_ = false;                      // whether the lists below are complete
    std::vector<std::int32_t> all_edge_;        // by receiver: number in the system
    std::vector<std::int32_t> all_sender_;      // by receiver
    std::vector<std::int32_t> all_block_edge_;  // by block: index into the lists by receiver
    std::vector<std::int32_t> kept_;            // by receiver: index into `sender`, -1: too long
    std::vector<double> positions_;             // [num_nodes][3]
    std::vector<std::int64_t> work_;
};

}  // namespace mdcg
