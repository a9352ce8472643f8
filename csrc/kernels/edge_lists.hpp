// Arguments of kernels/edge_lists.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// What follows from the rows of receivers: ends of edges, edges by sender, and pairs of edges.
struct ListArguments {
    Long num_edges, num_local, num_nodes, num_types, num_ranges;
    Long group;  // receivers; 0: no pairs are wanted
    const int *row_ptr, *sender, *types;
    int *receiver, *sender_type, *receiver_type, *identity;  // [num_edges]
    int* pairs;                                              // [num_types^2] is there such an edge
    const unsigned* sorted_sender;                           // [num_edges]
    int *sender_ptr, *by_sender;                             // [num_nodes + 1], [num_edges]
    // First edge of each range, [num_ranges + 1]. While rows are counted to choose ranges, chunks
    // stand in the place of ranges.
    const int* range_edge;
    unsigned* range_key;         // [num_edges] of by_sender
    int *edge_of_place, *place;  // [num_edges]
    int* runs;                   // [num_edges + 1] does a sender begin; then how many before
    int* range_first_sender;     // [num_ranges + 1]
    int *range_sender, *range_sender_ptr;
    // Of pairs: see csrc/engine/cuda/device_edges.hpp.
    Long* one_way;
    int* row_runs;         // [num_edges + 1] does a row begin; then how many before
    int* range_first_row;  // [num_ranges + 1]
    int *row_of_edge, *range_row_ptr;
    int* by_group;
    int* pair_row;
};
static_assert(sizeof(ListArguments) == 256);

}  // namespace mdcg
