#include "kernels/common.cuh"
#include "kernels/sender_sums.hpp"

// Sums what a chunk's edges give to each sender, in their order. Rows of dead edges may hold
// anything.
extern "C" __global__ void __launch_bounds__(256) sum_by_sender(const SenderSumArguments<T> p) {
    const Long i = thread_number();
    const Long s = i / p.width, c = i - s * p.width;
    if (s >= p.senders) return;
    Pack sum = {};
    const int end = p.row_ptr[s + 1];
    for (int k = p.row_ptr[s]; k < end; ++k) {
        if (p.length[p.edge[k]] >= DEAD) continue;
        const Pack row = p.rows[k * p.width + c];
#pragma unroll
        for (int j = 0; j < LANE_ITEMS; ++j) sum.v[j] += row.v[j];
    }
    Pack* const to = p.target + p.sender[s] * p.width + c;
    Pack total = *to;
#pragma unroll
    for (int j = 0; j < LANE_ITEMS; ++j) total.v[j] += sum.v[j];
    *to = total;
}
