#include "kernels/common.cuh"
#include "kernels/sender_sums.hpp"

// Sums what a chunk's edges give to each sender, in their order. Rows of dead edges may hold
// anything.
extern "C" __global__ void __launch_bounds__(256) sum_by_sender(const SenderSumArguments<T> p) {
    constexpr int AHEAD = 8;  // rows on their way from memory at a time
    const Long i = thread_number();
    const Long s = i / p.width, c = i - s * p.width;
    if (s >= p.senders) return;
    Pack sum = {};
    const int end = p.row_ptr[s + 1];
    for (int first = p.row_ptr[s]; first < end; first += AHEAD) {
        Pack row[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            const int k = first + a;
            const bool live = k < end && p.length[p.edge[k]] < DEAD;
            row[a] = live ? p.rows[k * p.width + c] : Pack{};
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
#pragma unroll
            for (int j = 0; j < LANE_ITEMS; ++j) sum.v[j] += row[a].v[j];
    }
    Pack* const to = p.target + p.sender[s] * p.width + c;
    Pack total = *to;
#pragma unroll
    for (int j = 0; j < LANE_ITEMS; ++j) total.v[j] += sum.v[j];
    *to = total;
}
