// Edges of one evaluation: those not longer than r_max, by receiver and by blocks of senders.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/neighbors/list_numbers.hpp"

namespace mdcg {

// One evaluation's input. Nodes 0 .. num_local-1 receive; the others (ghosts) only send.
struct System {
    std::int64_t num_local = 0, num_nodes = 0;
    const double* positions = nullptr;    // [num_nodes][3]
    const std::int32_t* types = nullptr;  // [num_nodes]
    std::int64_t num_edges = 0;
    const std::int32_t* sender = nullptr;    // [num_edges]
    const std::int32_t* receiver = nullptr;  // [num_edges] < num_local
    const double* shifts = nullptr;          // [num_edges][3]; null: none, or those of images
    // Edges and shifts with the numbers that the model holds are not read again: they may differ in
    // positions and types alone, edges of the same number also in shifts.
    ListNumbers list;
    bool same_edges = false, same_shifts = false;  // that it holds them; set by Model::evaluate
    // The reverse of each edge between local nodes is there, with the opposite vector.
    bool reversed = false;
    // The same where few of them differ: a row of image_shifts for each edge.
    const std::int32_t* images = nullptr;  // [num_edges] < num_images
    std::int64_t num_images = 0;
    const double* image_shifts = nullptr;  // [num_images][3]
    // The edges are still to be found, by a device: to all nodes, and to copies of them, closer to
    // a local one than r_max and the skin. A copy is where its node is less a row of image_shifts,
    // of which the first is zeros.
    bool make_edges = false;
    double skin = 0;  // Å
    std::int64_t num_copies = 0;
    const std::int32_t* copy_node = nullptr;   // [num_copies] < num_nodes
    const std::int32_t* copy_image = nullptr;  // [num_copies] < num_images
    // Forces and virials are derivatives of the sum of energies times these; null: of their sum.
    const double* energy_weights = nullptr;  // [num_local]

    // Of an edge; null: none.
    const double* shift(std::int64_t edge) const {
        if (images != nullptr) return image_shifts + 3 * static_cast<std::int64_t>(images[edge]);
        return shifts != nullptr ? shifts + 3 * edge : nullptr;
    }
};

// The same of an open or periodic system without ghosts, whose edges are still to be found.
struct CellSystem {
    std::int64_t num_nodes = 0;
    const double* positions = nullptr;       // [num_nodes][3]
    const std::int32_t* types = nullptr;     // [num_nodes]
    const double* cell = nullptr;            // [3][3]; null: none
    const bool* periodic = nullptr;          // [3]
    double skin = 0;                         // Å
    const double* energy_weights = nullptr;  // as of System
};

// Throws EngineError naming the first one out of range.
void check_types(const std::int32_t* types, std::int64_t num_nodes, int num_types);

// Nodes are numbered anew where that keeps neighbours together (see `node`); everything below is in
// the new numbers. Local nodes stay before ghosts.
//
// The list that is given may have a skin: its edges are put in order once, and every update keeps
// those not longer than r_max, in the same order.
struct Graph {
    std::int64_t num_local = 0, num_nodes = 0, num_edges = 0;
    std::int64_t nodes_per_block = 0;  // senders of a block; also the receivers of a chunk

    // By receiver.
    std::vector<std::int64_t> row_ptr;   // [num_local + 1]
    std::vector<std::int32_t> sender;    // [num_edges]
    std::vector<std::int32_t> receiver;  // [num_edges]
    std::vector<double> vec;             // [num_edges][3] pos[receiver] - pos[sender] + shift, Å

    // By block of senders, by receiver inside a block: numbers of edges in the order above.
    std::vector<std::int64_t> block_ptr;   // [num_blocks + 1]
    std::vector<std::int32_t> block_edge;  // [num_edges]

    std::vector<std::int32_t> types;  // [num_nodes]
    std::vector<std::int32_t> node;   // [num_nodes] number of the node in the given system

    std::int64_t num_blocks() const { return static_cast<std::int64_t>(block_ptr.size()) - 1; }

    // Takes over a system; `reorder`: nodes may be numbered anew. Throws EngineError naming the
    // first index out of range. Allocates nothing where the sizes have been seen before.
    void update(const System& system, double r_max, int num_types, std::int64_t nodes_per_block,
                bool reorder, int threads);

    // The first half of it, for devices, which have all edges and no blocks: order and types alone.
    // Returns whether any of that is new.
    bool update_order(const System& system, double r_max, int num_types, bool reorder);
    // A list that a device has made, with its order in `node`: there are no edges here.
    void forget_edges(std::int64_t local, std::int64_t nodes, std::int64_t edges);
    // [num_nodes][3], in the order of the graph; throws EngineError where one is not finite.
    void gather_positions(const System& system, double* positions, int threads) const;
    // Numbers of local nodes, in the order of the graph.
    void gather_local(const double* given, std::vector<double>& found) const {
        found.resize(static_cast<std::size_t>(num_local));
        for (std::size_t n = 0; n < found.size(); ++n) found[n] = given[node[n]];
    }
    // All edges by receiver: where those of a receiver begin, senders, numbers in the system.
    const std::vector<std::int64_t>& all_row_ptr() const { return all_row_ptr_; }
    const std::vector<std::int32_t>& all_sender() const { return all_sender_; }
    const std::vector<std::int32_t>& all_edge() const { return all_edge_; }

    std::size_t bytes() const;

private:
    bool take(const System& system, double r_max, int num_types, std::int64_t block, bool reorder);
    void order(const System& system);
    void filter(const System& system, double r_max, int threads);

    // All edges given, skin included.
    std::vector<std::int32_t> new_number_;  // [num_nodes] of given nodes
    std::vector<std::int64_t> all_row_ptr_, all_block_ptr_;
    std::int64_t num_images_ = -1;                     // that images were less than; -1: unknown
    bool shifted_ = false;                             // edges had shifts
    bool ordered_ = false;                             // the lists below are complete
    std::vector<std::int32_t> all_edge_, all_sender_;  // by receiver: given number, sender
    std::vector<std::int32_t> all_block_edge_;         // by block: place by receiver
    std::vector<std::int32_t> place_;                  // by receiver: new place, -1: too long
    std::vector<double> positions_;                    // [num_nodes][3]
    std::vector<std::int64_t> work_;
};

}  // namespace mdcg
