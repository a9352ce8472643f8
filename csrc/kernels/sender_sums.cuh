#include "kernels/common.cuh"
#include "kernels/sender_sums.hpp"

// Sums rows of the edges of each sender, and the sender's own rows. p.parts threads share an item:
// each takes some of the own rows and a part of the edges, in order, and the sums of the threads
// are added in order. Rows that do not count may hold anything.
extern "C" __global__ void __launch_bounds__(SENDER_THREADS)
    sum_by_sender(const SenderSumArguments<T> p) {
    constexpr int AHEAD = 8;  // rows loaded at a time
    __shared__ Pack sums[SENDER_THREADS];
    const int items = SENDER_THREADS / p.parts, part = int(threadIdx.x) / items;
    const Long i = Long(blockIdx.x) * items + int(threadIdx.x) % items;
    const Long s = i / p.width, c = i - s * p.width;
    const bool there = s < p.senders;
    const int node = !there ? 0 : p.sender != nullptr ? p.sender[s] : p.first_own + int(s);
    const bool has_own = unsigned(node - p.first_own) < unsigned(p.num_own);
    Pack sum = {};
    const auto add = [&](const Pack& row) {
#pragma unroll
        for (int j = 0; j < LANE_ITEMS; ++j) sum.v[j] += row.v[j];
    };
    if (there && has_own)
        for (int k = part; k < p.own_parts; k += p.parts)
            add(p.own[(Long(node - p.first_own) * p.own_parts + k) * p.width + c]);
    // Finding out whether an edge counts takes two loads, one after the other. So each thread of a
    // group, which has one sender, tests one edge and tells the others.
    const int lane = threadIdx.x % 32, place = lane % p.group;
    const unsigned group = ~0u >> (32 - p.group) << (lane - place);
    const auto counts = [&](int at) {
        if (p.active_rows != nullptr) return p.active_rows[at] != 0;
        const int edge = p.edge[at];
        return unsigned(edge - p.first_edge) < unsigned(p.num_edges) && p.length[edge] < DEAD;
    };
    if (there && p.row_ptr != nullptr) {
        const int begin = p.row_ptr[s], count = p.row_ptr[s + 1] - begin;
        const int end = begin + count * (part + 1) / p.parts;
        for (int first = begin + count * part / p.parts; first < end; first += p.group) {
            const int at = first + place;
            const bool alive = at < end && counts(at);
            unsigned active = (__ballot_sync(group, alive) & group) >> (lane - place);
            while (active != 0) {
                Pack row[AHEAD];
#pragma unroll
                for (int a = 0; a < AHEAD; ++a) {
                    row[a] = {};
                    if (active != 0) {
                        int number = first + __ffs(active) - 1;
                        if (p.active_rows == nullptr) number = p.edge[number] - p.first_edge;
                        row[a] = p.rows[number * p.width + c];
                    }
                    active &= active - 1;
                }
#pragma unroll
                for (int a = 0; a < AHEAD; ++a) add(row[a]);
            }
        }
    }
    if (p.parts > 1) {
        sums[threadIdx.x] = sum;
        __syncthreads();
    }
    if (part > 0 || !there) return;
    for (int other = 1; other < p.parts; ++other) add(sums[threadIdx.x + other * items]);
    Pack* const to = p.target + node * p.width + c;
    if (p.add || !has_own) add(*to);
    *to = sum;
}
