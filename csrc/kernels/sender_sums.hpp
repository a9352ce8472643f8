// Arguments of kernels/sender_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SENDER_THREADS = 256;  // threads per block

template <typename T>
struct SenderSumArguments {
    const PackOf<T>* __restrict__ rows;  // [edges, or rows of pairs][width]
    PackOf<T>* __restrict__ target;      // [nodes][width], added to, or written: see `add`
    const int* __restrict__ sender;      // [senders] node; null: first_own, first_own + 1, ..
    const int* __restrict__ row_ptr;     // [senders + 1]; null: there are no rows
    // Edges by sender. Edges without rows and edges beyond r_max are skipped.
    const int* __restrict__ edge;       // [row_ptr[senders]]
    const double* __restrict__ length;  // [all edges]
    // 0: the row does not count. If it is not null, rows belong to pairs and are sorted by sender.
    const int* __restrict__ active_rows;  // [rows]
    // [num_own][own_parts][width] rows of nodes first_own, first_own + 1, ... If `add` is 0, the
    // targets of these nodes are written instead of added to.
    const PackOf<T>* __restrict__ own;
    Long senders, width;        // width in packs
    int first_edge, num_edges;  // edges that have rows
    int parts;                  // threads that share the edges and rows of a sender
    int group;                  // threads with the same sender: a power of two
    int first_own, num_own, own_parts, add;
};
static_assert(sizeof(SenderSumArguments<float>) == 112 &&
              sizeof(SenderSumArguments<double>) == 112);

}  // namespace mdcg
