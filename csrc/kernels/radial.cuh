#include "kernels/radial_network.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) radial_forward(const RadialArguments<T> p) {
    extern __shared__ Quad shared_memory[];
    __shared__ Tile tile;
    T *const first = (T*)shared_memory, *const second = first + WIDEST * PITCH;
    T* const kept = p.kept ? p.kept + Long(blockIdx.x) * KEPT_ITEMS : nullptr;
    look_at_edges(p, tile);
    __syncthreads();
    basis<false>(p, tile, first);
    __syncthreads();
    const T* const last = layers_forward<0>(p, tile, first, second, kept);
    if (KEPT_LAST >= 0 && kept)
        for (int i = threadIdx.x; i < LAST * EDGES; i += THREADS)
            kept[KEPT_LAST + i] = last[i / EDGES * PITCH + i % EDGES];
    const Long begin = Long(blockIdx.x) * EDGES, rest = p.num_edges - begin;
    T* const hidden = p.hidden + begin * STRIDE;
    for (int i = threadIdx.x; i < EDGES * STRIDE; i += THREADS) {
        const int s = i / STRIDE, k = i % STRIDE;
        if (s >= rest) break;
        T value = 0;
        if (tile.active[s]) {
            value = k < LAST ? last[k * PITCH + s] : k == LAST && CONSTANT ? T(1) : T(0);
            if (!CUTOFF_ON_BASIS) value *= T(tile.cut[s]);
        }
        hidden[i] = value;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) radial_backward(const RadialArguments<T> p) {
    extern __shared__ Quad shared_memory[];
    __shared__ Tile tile;
    T *const d = (T*)shared_memory, *const other = d + WIDEST * PITCH;
    const T* const kept = p.kept + Long(blockIdx.x) * KEPT_ITEMS;
    look_at_edges(p, tile);
    __syncthreads();
    const Long begin = Long(blockIdx.x) * EDGES, rest = p.num_edges - begin;
    const T* const d_hidden = p.d_hidden + begin * STRIDE;
    for (int i = threadIdx.x; i < EDGES * STRIDE; i += THREADS) {
        const int s = i / STRIDE, k = i % STRIDE;
        if (k < LAST + CONSTANT) d[k * PITCH + s] = s < rest && tile.active[s] ? d_hidden[i] : T(0);
    }
    if (LAYERS == 0 && !CUTOFF_ON_BASIS) basis<false>(p, tile, other);
    __syncthreads();
    if (!CUTOFF_ON_BASIS) {
        for (int s = threadIdx.x; s < EDGES; s += THREADS) {
            double total = CONSTANT ? double(d[LAST * PITCH + s]) : 0.0;
            const T cut = T(tile.cut[s]);
            for (int k = 0; k < LAST; ++k) {
                const T last = LAYERS == 0 ? other[k * PITCH + s] : kept[KEPT_LAST + k * EDGES + s];
                total += double(d[k * PITCH + s]) * last;
                d[k * PITCH + s] *= cut;
            }
            tile.extra[s] = total * tile.cut_slope[s];
        }
        __syncthreads();
    }
    if constexpr (LAYERS > 0) {
        layers_backward<(LAYERS > 0 ? LAYERS - 1 : 0)>(p, tile, d, other, kept);
    } else {
        basis<true>(p, tile, other);
        __syncthreads();
        for (int s = threadIdx.x; s < EDGES; s += THREADS)
            for (int k = 0; k < LAST; ++k)
                tile.extra[s] += double(d[k * PITCH + s]) * double(other[k * PITCH + s]);
    }
    for (int s = threadIdx.x; s < EDGES; s += THREADS)
        if (s < rest) p.d_length[begin + s] = tile.active[s] ? tile.extra[s] : 0.0;
}

extern "C" __global__ void __launch_bounds__(128) sum_rows(const SumRowsArguments<T> p) {
    for (Long i = thread_number(); i < p.count * p.width; i += thread_count()) {
        const Long n = i / p.width, k = i % p.width;
        T total = 0;
        for (Long at = p.begin[n]; at < p.begin[n + 1]; ++at) {
            const Long row = (p.edge ? p.edge[at] : at) - p.first_edge;
            if (row >= 0 && row < p.num_edges) total += p.rows[row * p.width + k];
        }
        p.to[(p.first_node + n) * p.width + k] += total;
    }
}
