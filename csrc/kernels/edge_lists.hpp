// Arguments of kernels/edge_lists.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// What follows from the rows of receivers: ends of slots, and slots by sender.
struct ListArguments {
    Long num_slots, num_local, num_nodes, num_types, num_chunks;
    const int *row_ptr, *sender, *types;
    int *receiver, *sender_type, *receiver_type, *slot;  // [num_slots]
    int* pairs;                                          // [num_types^2] is there such an edge
    const unsigned* sorted_sender;                       // [num_slots]
    int *sender_ptr, *by_sender;                         // [num_nodes + 1], [num_slots]
    const int* chunk_slot;                               // [num_chunks + 1] where chunks begin
    unsigned* chunk_key;                                 // [num_slots] of by_sender
    int *slot_of_place, *place;                          // [num_slots]
    int* runs;                // [num_slots + 1] does a sender begin; then how many before
    int* chunk_first_sender;  // [num_chunks + 1]
    int *chunk_sender, *chunk_sender_ptr;
};
static_assert(sizeof(ListArguments) == 192);

}  // namespace mdcg
