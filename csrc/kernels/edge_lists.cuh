#include "kernels/common.cuh"
#include "kernels/edge_lists.hpp"

// A warp per receiver.
extern "C" __global__ void __launch_bounds__(256) expand_rows(const ListArguments p) {
    const Long receiver = thread_number() / 32;
    if (receiver >= p.num_local) return;
    const int to = p.types[receiver];
    for (int i = p.row_ptr[receiver] + threadIdx.x % 32; i < p.row_ptr[receiver + 1]; i += 32) {
        const int from = p.types[p.sender[i]];
        p.receiver[i] = int(receiver);
        p.receiver_type[i] = to;
        p.sender_type[i] = from;
        p.identity[i] = i;
        p.pairs[to * p.num_types + from] = 1;
    }
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

// Of the last chunk that begins at an edge or before it.
INLINE int chunk_of(const ListArguments& p, Long edge) {
    return int(lower_bound(p.chunk_edge, p.num_chunks, int(edge) + 1)) - 1;
}

extern "C" __global__ void __launch_bounds__(256) find_chunks(const ListArguments p) {
    const Long i = thread_number();
    if (i < p.num_edges) p.chunk_key[i] = unsigned(chunk_of(p, p.by_sender[i]));
}

// Is the sender at a place of a chunk another one than at the place before?
extern "C" __global__ void __launch_bounds__(256) find_runs(const ListArguments p) {
    const Long i = thread_number();
    if (i >= p.num_edges) return;
    const int edge = p.edge_of_place[i];
    const int first = p.chunk_edge[chunk_of(p, i)];
    p.place[edge] = int(i) - first;
    p.runs[i] = i == first || p.sender[edge] != p.sender[p.edge_of_place[i - 1]];
}

extern "C" __global__ void __launch_bounds__(256) count_senders(const ListArguments p) {
    const Long c = thread_number();
    if (c <= p.num_chunks) p.chunk_first_sender[c] = p.runs[p.chunk_edge[c]];
}

extern "C" __global__ void __launch_bounds__(256) write_senders(const ListArguments p) {
    const Long i = thread_number();
    if (i < p.num_edges && p.runs[i] != p.runs[i + 1]) {
        const int c = chunk_of(p, i);
        p.chunk_sender[p.runs[i]] = p.sender[p.edge_of_place[i]];
        p.chunk_sender_ptr[p.runs[i] + c] = int(i) - p.chunk_edge[c];
    }
    if (i < p.num_chunks)
        p.chunk_sender_ptr[p.chunk_first_sender[i + 1] + i] = p.chunk_edge[i + 1] - p.chunk_edge[i];
}
