// Products of rows and small matrices: c[row] (+)= a[row] @ b, several of them in one
// launch. A block computes a tile of c. It walks down the shared dimension in slices of DEPTH,
// which are copied to shared memory as they are, STAGES - 1 of them ahead of the one that is
// multiplied.
//
// What multiplies is in gemm_plain.cuh and gemm_tensor.cuh. Whatever the tile is, every sum runs
// over the shared dimension in order, unless GROUPS of warps share a slice.
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

// Sixteen bytes to shared memory that the thread does not wait for.
INLINE void start_copy(T* to, const T* from) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(unsigned(__cvta_generic_to_shared(to))),
        "l"(from)
        : "memory");
}
// So many bytes, and zeros up to 16.
INLINE void start_copy(T* to, const T* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     unsigned(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(bytes)
                 : "memory");
}
INLINE void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All but the last N groups have arrived.
template <int N>
INLINE void wait_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
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
    static constexpr int B_PACKS = DEPTH * ROW_PACKS * (Unit::IMAGES ? 2 : 1);
    static constexpr int B_LOADS = B_PACKS / THREADS;
    static_assert(ROWS * SLICE_PACKS % THREADS == 0 && B_PACKS % THREADS == 0, "loads");
    static_assert(!Unit::IMAGES || (ACROSS == 1 && GROUPS == 1), "a warp takes whole images");
    static_assert(THREADS % ROW_PACKS == 0, "a thread copies one column of b");
    static_assert(THREADS % SLICE_PACKS == 0, "and one of a");
    static_assert(GROUPS == 1 || 32 * WARPS * Unit::ITEMS <= STAGES * STAGE_ITEMS, "sums");
};

// Rows of a tile: where their nodes begin in a, and their components. Rows behind the last one are
// copies of the first: they are multiplied, and not stored.
template <typename S>
struct Starts {
    Long node[S::ROWS];
    int component[S::ROWS];
    INLINE void fill(const GemmProduct<T>& p, int first_row) {
        for (int i = threadIdx.x; i < S::ROWS; i += S::THREADS) {
            int found;
            find_row(p, first_row + i < p.rows ? first_row + i : first_row, found, component[i]);
            node[i] = Long(found) * p.a_width;
        }
    }
};

// Copies slice after slice, part after part. Columns behind the last one are copies of the first.
template <typename S>
struct Slices {
    static constexpr int A_STEP = S::THREADS / S::SLICE_PACKS, B_STEP = S::THREADS / S::ROW_PACKS;
    static constexpr bool IMAGES = S::Unit::IMAGES;
    const GemmProduct<T>& p;
    const Starts<S>& starts;
    const GemmPart* part;  // the next one
    int first_column;
    int left = 0;  // items of this part
    const T *a[S::A_LOADS], *b;

    INLINE Slices(const GemmProducts<T>& all, const GemmProduct<T>& product,
                  const Starts<S>& starts, int column)
        : p(product), starts(starts), part(all.part + product.first_part), first_column(column) {}
    INLINE int count() const {
        int slices = 0;
        for (int i = 0; i < p.parts; ++i) slices += (part[i].depth + S::DEPTH - 1) / S::DEPTH;
        return slices;
    }
    // This thread's first row and item in a slice of a, and of b.
    static INLINE int a_row() { return threadIdx.x / S::SLICE_PACKS; }
    static INLINE int a_item() { return threadIdx.x % S::SLICE_PACKS * LANE_ITEMS; }
    static INLINE int b_row() { return threadIdx.x / S::ROW_PACKS; }
    static INLINE int b_item() { return threadIdx.x % S::ROW_PACKS * LANE_ITEMS; }

    INLINE void begin_part() {
        left = part->depth;
        const T* const from = p.a + part->at + a_item();
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) {
            const int row = a_row() + i * A_STEP;
            a[i] = from + (starts.node[row] + Long(starts.component[row]) * part->step);
        }
        if constexpr (IMAGES) {
            b = p.images + ((part->row / S::DEPTH) * image_step() +
                            first_column / S::COLUMNS * S::B_ITEMS + threadIdx.x * LANE_ITEMS);
        } else {
            const int column = first_column + b_item();
            b = p.b + (Long(part->row + b_row()) * p.columns + (column < p.columns ? column : 0));
        }
        ++part;
    }
    INLINE Long image_step() const {
        return Long((p.columns + S::COLUMNS - 1) / S::COLUMNS) * S::B_ITEMS;
    }
    INLINE void start(T* stage) {
        if (left <= 0) begin_part();
        T* const to_a = stage + a_row() * S::A_STRIDE + a_item();
        T* const to_b = stage + S::A_ITEMS +
                        (IMAGES ? threadIdx.x * LANE_ITEMS : b_row() * S::B_STRIDE + b_item());
        constexpr int TO_STEP = IMAGES ? S::THREADS * LANE_ITEMS : B_STEP * S::B_STRIDE;
        const int from_step = IMAGES ? TO_STEP : B_STEP * p.columns;
        if (IMAGES || left >= S::DEPTH) {
#pragma unroll
            for (int i = 0; i < S::A_LOADS; ++i) start_copy(to_a + i * A_STEP * S::A_STRIDE, a[i]);
#pragma unroll
            for (int i = 0; i < S::B_LOADS; ++i) start_copy(to_b + i * TO_STEP, b + i * from_step);
        } else {  // zeros behind the last item
            const int bytes = max(0, min(left - a_item(), LANE_ITEMS)) * int(sizeof(T));
#pragma unroll
            for (int i = 0; i < S::A_LOADS; ++i)
                start_copy(to_a + i * A_STEP * S::A_STRIDE, bytes > 0 ? a[i] : p.b, bytes);
#pragma unroll
            for (int i = 0; i < S::B_LOADS; ++i) {
                const bool there = b_row() + i * B_STEP < left;
                start_copy(to_b + i * TO_STEP, there ? b + i * from_step : p.b, there ? 16 : 0);
            }
        }
#pragma unroll
        for (int i = 0; i < S::A_LOADS; ++i) a[i] += S::DEPTH;
        b += IMAGES ? image_step() : Long(S::DEPTH * p.columns);
        left -= S::DEPTH;
    }
};

// Sums of the groups, in their order, in the first.
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
INLINE void write_tile(const GemmProduct<T>& p, const typename S::Unit& unit, int first_row,
                       int first_column) {
    T* to = nullptr;
    const T* bias = nullptr;
    unit.each(
        [&](int row) {
            const int r = first_row + row;
            to = nullptr;
            if (r >= p.rows) return;
            int node, component;
            find_row(p, r, node, component);
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
    // neighbouring blocks share rows of a
    const int across = (p.columns + S::COLUMNS - 1) / S::COLUMNS;
    const int block = blockIdx.x - p.first_block;
    const int first_row = block / across * S::ROWS, first_column = block % across * S::COLUMNS;

    __shared__ Starts<S> starts;
    starts.fill(p, first_row);
    Slices<S> slices(all, p, starts, first_column);
    const int count = slices.count();
    const int warp = threadIdx.x / 32 % S::WARPS, group = threadIdx.x / 32 / S::WARPS;
    const int warp_row = warp / S::ACROSS * S::WARP_ROWS;
    const int warp_column = warp % S::ACROSS * S::WARP_COLUMNS;
    constexpr int GROUP_DEPTH = S::DEPTH / S::GROUPS;
    typename S::Unit unit;
    unit.clear();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < S::STAGES - 1; ++i) {
        if (i < count) slices.start(shared + i * S::STAGE_ITEMS);
        end_group();
    }
    int now = 0, next = S::STAGES - 1;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        wait_groups<S::STAGES - 2>();
        S::Unit::publish();
        __syncthreads();
        if (i + S::STAGES - 1 < count) slices.start(shared + next * S::STAGE_ITEMS);
        end_group();
        const T* const stage = shared + now * S::STAGE_ITEMS;
        const int k = group * GROUP_DEPTH;
        unit.template multiply<GROUP_DEPTH, S::A_STRIDE, S::B_STRIDE>(
            stage + warp_row * S::A_STRIDE + k, stage + S::A_ITEMS + k * S::B_STRIDE + warp_column);
        now = now + 1 == S::STAGES ? 0 : now + 1;
        next = next + 1 == S::STAGES ? 0 : next + 1;
    }
    if constexpr (S::GROUPS > 1) {
        add_groups<S>(unit, shared, group);
        if (group > 0) return;
    }
    write_tile<S>(p, unit, first_row + warp_row, first_column + warp_column);
}
