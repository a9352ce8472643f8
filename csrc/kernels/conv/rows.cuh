// Copies of rows of node features. A row is plain (in the user's layout) or packed: component by
// component, each padded to whole vectors. R is a struct of constants that
// mdcg/codegen/conv/rows.py prints.
#pragma once
#include "kernels/conv/memory.cuh"
#include "kernels/static_loops.cuh"

// A block of a row; component a of channel u lies at start + a * stride_a + u * stride_u.
struct RowBlock {
    int packed, dim, padded;  // the packed block
    int start, stride_a, stride_u, mul;
};

struct RowCopy {
    const T* source;  // [n_rows] rows, packed or not
    T* target;        // [n_rows] rows
    Long n_rows;
};

struct RowSum {
    const T* source;  // [num_edges] packed rows
    T* target;        // [n_rows] rows
    Long n_rows;
    const int* row_ptr;  // [n_rows + 1] first edge of each row's sum
};

// Calls body(number of the block, position in the plain row, channels of the block that are left)
// for item c of a packed row.
template <typename R, typename Body>
MDCG_INLINE void find_item(int c, const Body& body) {
    each<R::BLOCKS>([&](auto number) {
        constexpr RowBlock block = R::BLOCK[decltype(number)::value];
        const int item = c - block.packed;
        if (item < 0 || item >= block.dim * block.padded) return;
        const int a = item / block.padded, u = item % block.padded;
        body(number, block.start + a * block.stride_a + u * block.stride_u, block.mul - u);
    });
}

// A thread takes an item of a packed row.
template <typename R>
MDCG_INLINE void pack_rows(const RowCopy& p) {
    END_IDLE_LANES();
    const Long i = Long(blockIdx.x) * R::THREADS + threadIdx.x, row = i / R::PACKED;
    if (row >= p.n_rows) return;
    find_item<R>(int(i - row * R::PACKED), [&](auto, int place, int left) {
        p.target[i] = left > 0 ? p.source[row * R::PLAIN + place] : T(0);
    });
}

template <typename R>
MDCG_INLINE void unpack_rows(const RowCopy& p) {
    END_IDLE_LANES();
    const Long i = Long(blockIdx.x) * R::THREADS + threadIdx.x, row = i / R::PACKED;
    if (row >= p.n_rows) return;
    find_item<R>(int(i - row * R::PACKED), [&](auto, int place, int left) {
        if (left > 0) p.target[row * R::PLAIN + place] = p.source[i];
    });
}

// A thread sums 16 bytes of packed rows, one per edge.
template <typename R>
MDCG_INLINE void sum_rows(const RowSum& p) {
    END_IDLE_LANES();
    constexpr int WIDTH = 16 / sizeof(T), VECTORS = R::PACKED / WIDTH;
    const Long i = Long(blockIdx.x) * R::THREADS + threadIdx.x, row = i / VECTORS;
    if (row >= p.n_rows) return;
    const int c = int(i - row * VECTORS) * WIDTH, end = p.row_ptr[row + 1];
    Vec<WIDTH> total = {};
#pragma unroll 4
    for (int k = p.row_ptr[row]; k < end; ++k)
        total += load_stream(p.source + Long(k) * R::PACKED + c, Vec<WIDTH>());
    find_item<R>(c, [&](auto number, int place, int left) {
        constexpr int STRIDE = R::BLOCK[decltype(number)::value].stride_u;
        store_some<WIDTH, STRIDE>(p.target + row * R::PLAIN + place, total, left);
    });
}
