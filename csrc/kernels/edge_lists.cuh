#include "kernels/common.cuh"
#include "kernels/edge_lists.hpp"

// A hash of a pair of nodes (the mixing function of SplitMix64).
INLINE unsigned long long mixed(unsigned first, unsigned second) {
    unsigned long long x = (unsigned long long)first << 32 | second;
    x = (x + 0x9e3779b97f4a7c15ull) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// A warp per receiver. p.one_way becomes a sum of hashes over all edges between local nodes. An
// edge and its reverse have the same hash with opposite signs, so the sum is 0 if each edge has a
// reverse.
extern "C" __global__ void __launch_bounds__(256) expand_rows(const ListArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver >= p.num_local) return;
    const int to = p.types[receiver];
    unsigned long long one_way = 0;
    for (int i = p.row_ptr[receiver] + threadIdx.x % 32; i < p.row_ptr[receiver + 1]; i += 32) {
        const int from = p.types[p.sender[i]];
        p.receiver[i] = int(receiver);
        p.receiver_type[i] = to;
        p.sender_type[i] = from;
        p.pairs[to * p.num_types + from] = 1;
        const int other = p.sender[i];
        if (other >= p.num_local || other == receiver) continue;
        if (receiver < other)
            one_way += mixed(unsigned(receiver), unsigned(other));
        else
            one_way -= mixed(unsigned(other), unsigned(receiver));
    }
    if (p.group == 0) return;
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) one_way += __shfl_xor_sync(0xffffffffu, one_way, bit);
    if (threadIdx.x % 32 == 0 && one_way != 0) atomicAdd((unsigned long long*)p.one_way, one_way);
}

// The number of the first of `count` ascending items that is not below `value`.
template <typename N>
INLINE Long lower_bound(const N* items, Long count, N value) {
    Long low = 0, high = count;
    while (low < high) {
        const Long middle = (low + high) / 2;
        if (items[middle] < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

extern "C" __global__ void __launch_bounds__(256) find_senders(const ListArguments p) {
    const Long s = thread_number();
    if (s <= p.num_nodes)
        p.sender_ptr[s] = int(lower_bound(p.sorted_sender, p.num_edges, unsigned(s)));
}

// Number of the last range that begins at an edge or before it.
INLINE int range_of(const ListArguments& p, Long edge) {
    return int(lower_bound(p.range_edge, p.num_ranges, int(edge) + 1)) - 1;
}

extern "C" __global__ void __launch_bounds__(256) find_ranges(const ListArguments p) {
    const Long i = thread_number();
    if (i < p.num_edges) p.range_key[i] = unsigned(range_of(p, p.by_sender[i]));
}

// A block per group of receivers. It orders their edges by sender, and edges of the same sender by
// number, which is by receiver: the place of an edge is the number of edges that come before it.
// The time grows with the square of a group's edges, of which there are some hundred.
extern "C" __global__ void __launch_bounds__(256) order_groups(const ListArguments p) {
    typedef PackOf<unsigned> Senders;
    __shared__ Senders all[256 / Senders::ITEMS];
    const Long receiver = blockIdx.x * p.group;
    const int first = p.row_ptr[receiver];
    const int count = p.row_ptr[min(receiver + p.group, p.num_local)] - first;
    const auto sender_of = [&](int edge) {
        return edge < count ? unsigned(p.sender[first + edge]) : ~0u;
    };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int begin = 0; begin < count; begin += 256) {
        const int edge = begin + int(threadIdx.x), warp_begin = begin + 32 * warp;
        const unsigned own = sender_of(edge);
        // edges of this warp with the same sender and a lower number
        int place = __popc(__match_any_sync(0xffffffffu, own) & ((1u << lane) - 1));
        for (int tile = 0; tile < count; tile += 256) {
            __syncthreads();  // the tile before has been read
            ((unsigned*)all)[threadIdx.x] = sender_of(tile + int(threadIdx.x));
            __syncthreads();
            if (warp_begin >= count) continue;  // this warp has no edges here
            for (int part = tile; part < min(tile + 256, count); part += 32) {
                // an earlier edge with the same sender comes first, a later one does not
                const unsigned bound = part < warp_begin ? own + 1 : own;
#pragma unroll
                for (int k = 0; k < 32; k += Senders::ITEMS) {
                    const Senders found = all[(part - tile + k) / Senders::ITEMS];
#pragma unroll
                    for (int i = 0; i < Senders::ITEMS; ++i) place += found.v[i] < bound;
                }
            }
        }
        if (edge < count) p.by_group[first + place] = first + edge;
    }
}

// Whether an edge is in the list of its receiver's group. One edge of each pair is listed. All
// pairs between two groups are in the list of the same group. Inside a group, the edge with the
// lower receiver is listed. So among the edges of a group with the same sender, those with the
// lowest receivers are listed.
INLINE bool listed(const ListArguments& p, int edge) {
    const int i = p.receiver[edge], j = p.sender[edge];
    if (*p.one_way != 0 || j >= p.num_local || i == j) return true;
    const int a = i / int(p.group), b = j / int(p.group);
    if (a == b) return i < j;
    return ((a ^ b) & 1) != 0 ? a > b : a < b;
}

// Marks edges whose sender differs from the sender of the edge before, and listed edges that begin
// a row of pairs because their sender or their group differs from that of the edge before.
extern "C" __global__ void __launch_bounds__(256) find_runs(const ListArguments p) {
    const Long i = thread_number();
    if (i >= p.num_edges) return;
    const int edge = p.edge_of_place[i];
    const int first = p.range_edge[range_of(p, i)];
    const int before = p.edge_of_place[i == first ? i : i - 1];
    p.runs[i] = i == first || p.sender[edge] != p.sender[before];
    const bool new_group = p.receiver[edge] / p.group != p.receiver[before] / p.group;
    p.row_runs[i] = listed(p, edge) && (p.runs[i] != 0 || new_group);
}

extern "C" __global__ void __launch_bounds__(256) count_senders(const ListArguments p) {
    const Long c = thread_number();
    if (c > p.num_ranges) return;
    p.range_first_sender[c] = p.runs[p.range_edge[c]];
    p.range_first_row[c] = p.row_runs[p.range_edge[c]];
}

extern "C" __global__ void __launch_bounds__(256) write_senders(const ListArguments p) {
    const Long i = thread_number();
    if (p.num_ranges == 1) {  // all nodes count as senders
        if (i <= p.num_nodes) p.range_row_ptr[i] = p.row_runs[p.sender_ptr[i]];
    } else if (i < p.num_edges && p.runs[i] != p.runs[i + 1]) {
        p.range_sender[p.runs[i]] = p.sender[p.edge_of_place[i]];
        p.range_row_ptr[p.runs[i] + range_of(p, i)] = p.row_runs[i];
    }
    if (p.num_ranges > 1 && i < p.num_ranges)
        p.range_row_ptr[p.range_first_sender[i + 1] + i] = p.range_first_row[i + 1];
    if (i >= p.num_edges) return;
    const int edge = p.edge_of_place[i];
    p.row_of_edge[edge] = listed(p, edge) ? p.row_runs[i + 1] - 1 : -1;
}

extern "C" __global__ void __launch_bounds__(256) order_rows(const ListArguments p) {
    const Long i = thread_number();
    if (i < p.num_edges) p.pair_row[i] = p.row_of_edge[p.by_group[i]];
}
