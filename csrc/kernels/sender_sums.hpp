// Arguments of kernels/sender_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SENDER_THREADS = 256;  // of a block

template <typename T>
struct SenderSumArguments {
    const PackOf<T>* __restrict__ rows;  // [edges, or rows of pairs][width]
    PackOf<T>* __restrict__ target;      // [nodes][width], added to or written: see `add`
    const int* __restrict__ sender;      // [senders] node; null: those of `own`
    const int* __restrict__ row_ptr;     // [senders + 1]; null: there are no rows
    // Rows of edges: edges by sender, of which those without rows and those beyond r_max are
    // skipped.
    const int* __restrict__ edge;       // [row_ptr[senders]]
    const double* __restrict__ length;  // [all edges]
    // Rows of pairs, which are by sender: 0 for those that do not count. Null: rows of edges.
    const int* __restrict__ active_rows;  // [rows]
    // Rows that blocks have summed for the nodes from first_own on: [num_own][own_parts][width].
    // Where add is 0, the targets of these nodes are written instead of added to.
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
