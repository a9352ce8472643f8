// Products of rows and small matrices: c[row] (+)= a[row] @ b, several of them in one launch. A
// block computes a tile of c. It walks along the shared dimension in slices of DEPTH. Slices are
// copied to shared memory unchanged, STAGES - 1 slices ahead of the one that is multiplied.
//
// gemm_plain.cuh, gemm_tensor.cuh and gemm_warpgroup.cuh multiply slices. Whatever the tile is,
// every sum runs over the shared dimension in order, unless GROUPS of warps share a slice.
#pragma once
#include "kernels/common.cuh"
#include "kernels/gemm.hpp"

INLINE void find_row(const GemmProduct<T>& p, int row, int& node, int& component) {
    node = row;
    component = 0;
    if (p.batch > 1) {
        node = unsigned(row) / unsigned(p.batch);
        component = row - node * p.batch;
    }
    if (p.list != nullptr) node = p.list[node];
}

// Starts an asynchronous copy of `bytes` bytes to shared memory, filled up to 16 with zeros.
INLINE void start_copy(T* to, const T* from, int bytes) {
#ifdef __HIP__
    hip::copy(to, from, bytes);
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     unsigned(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(bytes)
                 : "memory");
#endif
}
INLINE void end_group() {
#ifndef __HIP__
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until all groups of copies but the last N have arrived.
template <int N>
INLINE void wait_groups() {
#ifndef __HIP__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

// UNIT<WARP_ROWS, WARP_COLUMNS> multiplies a warp's part of slices.
template <template <int, int> class UNIT, int ROWS_, int COLUMNS_, int DEPTH_, int STAGES_,
          int WARP_ROWS_, int WARP_COLUMNS_, int GROUPS_>
struct Tile {
    typedef UNIT<WARP_ROWS_, WARP_COLUMNS_> Unit;
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr int WARP_ROWS = WARP_ROWS_, WARP_COLUMNS = WARP_COLUMNS_, GROUPS = GROUPS_;
    static constexpr int ACROSS = COLUMNS / WARP_COLUMNS, WARPS = ACROSS * (ROWS / WARP_ROWS);
    static constexpr int THREADS = 32 * WARPS * GROUPS;
    static constexpr int A_STRIDE = Unit::a_stride(DEPTH), B_STRIDE = Unit::b_stride(COLUMNS);
    static constexpr int A_ITEMS = ROWS * A_STRIDE, B_ITEMS = DEPTH * B_STRIDE;
    static constexpr int STAGE_ITEMS = A_ITEMS + B_ITEMS;
    static constexpr int SLICE_PACKS = DEPTH / LANE_ITEMS, ROW_PACKS = COLUMNS / LANE_ITEMS;
    static constexpr int A_LOADS = ROWS * SLICE_PACKS / THREADS;
    static constexpr int B_LOADS = DEPTH * ROW_PACKS / THREADS;
    static_assert(ROWS * SLICE_PACKS % THREADS == 0 && DEPTH * ROW_PACKS % THREADS == 0, "loads");
    static_assert(THREADS % ROW_PACKS == 0, "a thread copies one column of b");
    static_assert(THREADS % SLICE_PACKS == 0, "and one of a");
    static_assert(ROWS <= THREADS, "a thread finds one row");
    static_assert(GROUPS == 1 || 32 * WARPS * Unit::ITEMS <= STAGES * STAGE_ITEMS, "sums");
};

// The node and the component of each row of a tile.
template <typename S>
struct Places {
    int node[S::ROWS];  // -1: no such row
    int component[S::ROWS];
    INLINE void fill(const GemmProduct<T>& p, int first_row) {
        const int i = threadIdx.x;
        if (i >= S::ROWS) return;
        int of_node = -1, of_component = 0;
        if (first_row + i < p.rows) find_row(p, first_row + i, of_node, of_component);
        node[i] = of_node;
        component[i] = of_component;
    }
    // Offset of a row in a, from the first item of the part.
    INLINE Long start(const GemmProduct<T>& p, const GemmPart& part, int row) const {
        return Long(node[row]) * p.a_width + Long(component[row]) * part.step;
    }
};

// Copies slices of a to shared memory, part after part. A thread copies the same columns of some
// rows. Rows beyond the last one are copies of the first: they are multiplied, but not stored.
template <typename S>
struct RowCopies {
    static constexpr int ROW_STEP = S::THREADS / S::SLICE_PACKS;
    const GemmProduct<T>& p;
    const GemmPart* part;  // the next one
    int left = 0;          // items of this part
    const T* a[S::A_LOADS];

    INLINE RowCopies(const GemmProducts<T>& all, const GemmProduct<T>& product)
        : p(product), part(all.part + product.first_part) {}
    static INLINE int first_row() { return threadIdx.x / S::SLICE_PACKS; }
    static INLINE int first_item() { return threadIdx.x % S::SLICE_PACKS * LANE_ITEMS; }
    INLINE int count() const {  // number of slices
        int slices = 0;
#pragma unroll 1  // here and below: shorter programs start faster
        for (int i = 0; i < p.parts; ++i) slices += (part[i].depth + S::DEPTH - 1) / S::DEPTH;
        return slices;
    }
    // Returns the part.
    INLINE const GemmPart& begin_part(const Places<S>& places) {
        left = part->depth;
        const T* const from = p.a + part->at + first_item();
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int row = first_row() + i * ROW_STEP;
            a[i] = from + places.start(p, *part, places.node[row] >= 0 ? row : 0);
        }
        return *part++;
    }
    INLINE void start(T* stage, int bytes) {
        T* const to = stage + first_row() * S::A_STRIDE + first_item();
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            start_copy(to + i * ROW_STEP * S::A_STRIDE, a[i], bytes);
            a[i] += S::DEPTH;
        }
        left -= S::DEPTH;
    }
};

// Copies slices of a and b. Items beyond the last column or row are zeros.
template <typename S>
struct Slices : RowCopies<S> {
    using Rows = RowCopies<S>;
    using Rows::left;
    using Rows::p;
    static constexpr int B_STEP = S::THREADS / S::ROW_PACKS;  // rows
    int column;
    const T* b;

    INLINE Slices(const GemmProducts<T>& all, const GemmProduct<T>& product, int first_column)
        : Rows(all, product), column(first_column + first_of_b()) {}
    static INLINE int first_of_b() { return threadIdx.x % S::ROW_PACKS * LANE_ITEMS; }
    INLINE void start(const Places<S>& places, T* stage) {
        const int k = threadIdx.x / S::ROW_PACKS;
        if (left <= 0) b = p.b + (Long(Rows::begin_part(places).row + k) * p.columns + column);
        T* const to = stage + S::A_ITEMS + k * S::B_STRIDE + first_of_b();
#pragma unroll
        for (int i = 0; i < S::B_LOADS; ++i) {
            const bool there = column < p.columns && k + i * B_STEP < left;
            start_copy(to + i * B_STEP * S::B_STRIDE, b + Long(i * B_STEP) * p.columns,
                       there ? 16 : 0);
        }
        b += Long(S::DEPTH) * p.columns;
        Rows::start(stage, max(0, min(left - Rows::first_item(), LANE_ITEMS)) * int(sizeof(T)));
    }
};

// Adds the sums of all groups to those of the first, in order.
template <typename S>
INLINE void add_groups(typename S::Unit& unit, T* shared, int group) {
    const int thread = threadIdx.x % (32 * S::WARPS);
#pragma unroll 1
    for (int g = 1; g < S::GROUPS; ++g) {
        __syncthreads();
        if (group == g) {
#pragma unroll
            for (int i = 0; i < S::Unit::ITEMS; ++i)
                shared[i * (32 * S::WARPS) + thread] = unit.sum[i];
        }
        __syncthreads();
        if (group == 0) {
#pragma unroll
            for (int i = 0; i < S::Unit::ITEMS; ++i)
                unit.sum[i] += shared[i * (32 * S::WARPS) + thread];
        }
    }
}

template <typename S>
INLINE void write_tile(const GemmProduct<T>& p, const typename S::Unit& unit,
                       const Places<S>& places, int first_row, int first_column) {
    T* to = nullptr;
    const T* bias = nullptr;
    unit.each(
        [&](int row) {
            const int node = places.node[first_row + row];
            to = nullptr;
            if (node < 0) return;
            const int component = places.component[first_row + row];
            to = p.c + (Long(node) * p.c_width + Long(component) * p.c_step);
            if (p.bias != nullptr)
                bias = p.bias + (p.bias_types ? Long(p.bias_types[node]) * p.columns : Long(0));
        },
        [&](int column, Pack out) {
            const int at = first_column + column;
            if (to == nullptr || at >= p.columns) return;
            if (p.bias != nullptr) {
                const Pack more = *(const Pack*)(bias + at);
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v) out.v[v] += more.v[v];
            }
            if (p.add) {
                const Pack old = *(const Pack*)(to + at);
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v) out.v[v] += old.v[v];
            }
            *(Pack*)(to + at) = out;
        });
}

template <typename S>
INLINE void multiply_tile(const GemmProducts<T>& all, T* shared) {
    int number = 0;
    while (number + 1 < all.count && int(blockIdx.x) >= all.product[number + 1].first_block)
        ++number;
    const GemmProduct<T>& p = all.product[number];
    // Neighbouring blocks share rows of a.
    const int across = (p.columns + S::COLUMNS - 1) / S::COLUMNS;
    const int block = blockIdx.x - p.first_block;
    const int first_row = block / across * S::ROWS, first_column = block % across * S::COLUMNS;

    __shared__ Places<S> places;
    places.fill(p, first_row);
    typename S::Unit::template Copies<S> slices(all, p, first_column);
    const int count = slices.count();
    const int warp = threadIdx.x / 32 % S::WARPS, group = threadIdx.x / 32 / S::WARPS;
    const int warp_row = warp / S::ACROSS * S::WARP_ROWS;
    const int warp_column = warp % S::ACROSS * S::WARP_COLUMNS;
    constexpr int GROUP_DEPTH = S::DEPTH / S::GROUPS;
    typename S::Unit unit;
    unit.clear();
    __syncthreads();
    int now = 0, next = 0;
#pragma unroll 1
    for (int i = 1 - S::STAGES; i < count; ++i) {  // below 0 it only starts copies
        if (i >= 0) {
            wait_groups<S::STAGES - 2>();
            S::Unit::publish();
            __syncthreads();
        }
        if (i + S::STAGES - 1 < count) slices.start(places, shared + next * S::STAGE_ITEMS);
        end_group();
        next = next + 1 == S::STAGES ? 0 : next + 1;
        if (i < 0) continue;
        const T* const stage = shared + now * S::STAGE_ITEMS;
        const int k = group * GROUP_DEPTH;
        unit.template multiply<GROUP_DEPTH, S::A_STRIDE, S::B_STRIDE>(
            stage + warp_row * S::A_STRIDE + k, stage + S::A_ITEMS + k * S::B_STRIDE + warp_column);
        now = now + 1 == S::STAGES ? 0 : now + 1;
    }
    if constexpr (S::GROUPS > 1) {
        add_groups<S>(unit, shared, group);
        if (group > 0) return;
    }
    write_tile<S>(p, unit, places, warp_row, first_column + warp_column);
}
