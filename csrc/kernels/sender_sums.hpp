// Arguments of kernels/sender_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SENDER_THREADS = 256, SENDER_PARTS = 4;  // of a block; threads that share an item

template <typename T>
struct SenderSumArguments {
    const PackOf<T>* __restrict__ rows;  // [edges of a chunk][width], by sender
    PackOf<T>* __restrict__ target;      // [nodes][width], added to
    const int* __restrict__ sender;      // [senders] node
    const int* __restrict__ row_ptr;     // [senders + 1]
    const int* __restrict__ edge;        // of each row
    const double* __restrict__ length;   // of all edges
    Long senders, width;                 // width in quads
};
static_assert(sizeof(SenderSumArguments<float>) == 64 && sizeof(SenderSumArguments<double>) == 64);

}  // namespace mdcg
