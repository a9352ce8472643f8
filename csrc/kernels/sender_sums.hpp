// Arguments of kernels/sender_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SENDER_THREADS = 256;  // of a block

template <typename T>
struct SenderSumArguments {
    const PackOf<T>* __restrict__ rows;  // [edges of a chunk][width], by sender
    PackOf<T>* __restrict__ target;      // [nodes][width], added to
    const int* __restrict__ sender;      // [senders] node
    const int* __restrict__ row_ptr;     // [senders + 1]
    const int* __restrict__ edge;        // of each row
    const double* __restrict__ length;   // of all edges
    Long senders, width;                 // width in quads
    int parts;                           // of the edges of a sender, each summed by a thread
    int group;                           // threads with the same sender: a power of two
};
static_assert(sizeof(SenderSumArguments<float>) == 72 && sizeof(SenderSumArguments<double>) == 72);

}  // namespace mdcg
