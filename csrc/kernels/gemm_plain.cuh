#pragma once
#include "kernels/gemm_tiles.cuh"

// Multiplies with fused multiply-adds. A warp is a grid of 4 x 8 threads; the rows of a thread are
// 4 apart, its packs of columns 8 packs apart.
template <int M, int N>
struct Plain {
    template <typename S>
    using Copies = Slices<S>;
    static constexpr int ROWS = M / 4, COLUMNS = N / 8, ITEMS = ROWS * COLUMNS;
    static_assert(M % 4 == 0 && COLUMNS % LANE_ITEMS == 0, "packs");
    // lanes of four rows read different banks
    static constexpr int a_stride(int depth) { return depth + LANE_ITEMS; }
    static constexpr int b_stride(int columns) { return columns; }
    T sum[ITEMS];

    static INLINE int x() { return threadIdx.x % 8; }
    static INLINE int y() { return threadIdx.x % 32 / 8; }
    static INLINE void publish() {}
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) sum[i] = T(0);
    }
    template <int DEPTH, int A_STRIDE, int B_STRIDE>
    INLINE void multiply(const T* a, const T* b) {
        a += y() * A_STRIDE;
        b += x() * LANE_ITEMS;
#pragma unroll
        for (int k = 0; k < DEPTH; k += LANE_ITEMS) {
            Pack left[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) left[i] = *(const Pack*)(a + 4 * i * A_STRIDE + k);
#pragma unroll
            for (int v = 0; v < LANE_ITEMS; ++v) {
                Pack right[COLUMNS / LANE_ITEMS];
#pragma unroll
                for (int j = 0; j < COLUMNS / LANE_ITEMS; ++j)
                    right[j] = *(const Pack*)(b + (k + v) * B_STRIDE + 8 * LANE_ITEMS * j);
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
#pragma unroll
                    for (int j = 0; j < COLUMNS; ++j)
                        sum[i * COLUMNS + j] +=
                            left[i].v[v] * right[j / LANE_ITEMS].v[j % LANE_ITEMS];
            }
        }
    }
    // Calls row(r), then put(column, items) for each pack of that row.
    template <typename Row, typename Put>
    INLINE void each(const Row& row, const Put& put) const {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            row(4 * i + y());
#pragma unroll
            for (int j = 0; j < COLUMNS; j += LANE_ITEMS) {
                Pack out;
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v) out.v[v] = sum[i * COLUMNS + j + v];
                put(8 * j + x() * LANE_ITEMS, out);
            }
        }
    }
};
