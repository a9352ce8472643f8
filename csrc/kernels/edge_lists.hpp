// Arguments of kernels/edge_lists.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// What follows from the rows of receivers: ends of edges, edges by sender, and pairs of edges.
struct ListArguments {
    Long num_edges, num_local, num_nodes, num_types, num_ranges;
    Long group;                     // receivers; 0: no pairs are wanted
    const int* row_ptr;             // [num_local + 1]
    const int* sender;              // [num_edges]
    const int* types;               // [num_nodes]
    int* receiver;                  // [num_edges]
    int* sender_type;               // [num_edges]
    int* receiver_type;             // [num_edges]
    int* pairs;                     // [num_types^2] 1: there is an edge of these types
    const unsigned* sorted_sender;  // [num_edges]
    int* sender_ptr;                // [num_nodes + 1]
    int* by_sender;                 // [num_edges]
    // The rest serves pairs: see csrc/engine/cuda/device_edges.hpp.
    const int* range_edge;    // [num_ranges + 1] first edge of each range
    unsigned* range_key;      // [num_edges] range of each edge of by_sender
    int* edge_of_place;       // [num_edges] edges by range, then by sender
    int* runs;                // [num_edges + 1] 1: a sender begins; then the number before
    int* row_runs;            // [num_edges + 1] 1: a row begins; then the number before
    int* range_first_sender;  // [num_ranges + 1]
    int* range_first_row;     // [num_ranges + 1]
    int* range_sender;        // [senders]
    int* range_row_ptr;       // [senders + num_ranges], or [num_nodes + 1] for one range
    Long* one_way;            // [1]
    int* by_group;            // [num_edges]
    int* row_of_edge;         // [num_edges]
    int* pair_row;            // [num_edges]
};
static_assert(sizeof(ListArguments) == 232);

}  // namespace mdcg
