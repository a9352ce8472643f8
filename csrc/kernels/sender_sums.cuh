#include "kernels/common.cuh"
#include "kernels/sender_sums.hpp"

// Sums what a chunk's edges give to each sender. Each of SENDER_PARTS threads takes a part of the
// edges, in their order; the parts are added in order. Rows of dead edges may hold anything.
extern "C" __global__ void __launch_bounds__(SENDER_THREADS)
    sum_by_sender(const SenderSumArguments<T> p) {
    constexpr int AHEAD = 8;  // rows on their way from memory at a time
    constexpr int ITEMS = SENDER_THREADS / SENDER_PARTS;
    __shared__ Pack sums[SENDER_THREADS];
    begin_kernel();
    const int part = int(threadIdx.x) / ITEMS;
    const Long i = Long(blockIdx.x) * ITEMS + threadIdx.x % ITEMS;
    const Long s = i / p.width, c = i - s * p.width;
    const bool there = s < p.senders;
    Pack sum = {};
    if (there) {
        const int begin = p.row_ptr[s], count = p.row_ptr[s + 1] - begin;
        const int end = begin + count * (part + 1) / SENDER_PARTS;
        for (int first = begin + count * part / SENDER_PARTS; first < end; first += AHEAD) {
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
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (part > 0 || !there) return;
    Pack* const to = p.target + p.sender[s] * p.width + c;
    Pack total = *to;
#pragma unroll
    for (int other = 1; other < SENDER_PARTS; ++other)
#pragma unroll
        for (int j = 0; j < LANE_ITEMS; ++j) sum.v[j] += sums[threadIdx.x + other * ITEMS].v[j];
#pragma unroll
    for (int j = 0; j < LANE_ITEMS; ++j) total.v[j] += sum.v[j];
    *to = total;
}
