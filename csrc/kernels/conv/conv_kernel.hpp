// What a convolution kernel gets, generated or generic: one block of edges, ready to contract.
// Generated text contains this file; MDCG_CONV_ABI changes with the struct.
#pragma once

#include <cstdint>

namespace mdcg {

constexpr std::int64_t MDCG_CONV_ABI = 5;
// Degree of the splines in tables of weights.
template <typename T>
constexpr int TABLE_STEPS = sizeof(T) == 8 ? 9 : 5;

// Geometry and radial values of a block are made by the engine, in the cache; the kernel multiplies
// the last linear of the radial network (or looks weights up in the table), applies the paths and
// adds to rows. Per-edge weights live in tiles of one path only.
//
// Columns of weights are padded per path: path p starts at the sum of the strides before it, its
// stride is its multiplicity rounded up to 64 bytes; padding columns are zero. w2 and the table are
// stored in panels of 64 bytes of columns (A items), so that one panel, read for all edges of a
// block, stays in the first-level cache.
template <typename T>
struct ConvBlock {
    std::int64_t num_edges;        // 1 .. `edges` of ConvInfo
    const std::int32_t* sender;    // [num_edges] row of x (node, or type where x is a table)
    const std::int32_t* receiver;  // [num_edges] row of out and g; equal ones stand together
    const T* harmonics;            // [(l_max+1)^2][edges], column = edge, unused columns zero

    // Exact radial network: w(e) = hidden(e) @ w2.
    const T* hidden;  // [edges][hidden_stride], unused rows zero; null: table
    const T* w2;      // [weight_width / A][hidden_stride][A]
    const T* w2_t;    // [weight_width][hidden_stride]; backward only
    // Table: w(e) = table[knot[e]] + sum_j basis[j][e] * steps[knot[e] + j], j < TABLE_STEPS<T>,
    // and its derivative with respect to the length with `slope` for `basis`, without the first
    // term.
    const T* table;  // [weight_width / A][table_rows][A]
    const T* steps;  // the same shape: what a row of the table is followed by, less that row; in
                     // double null, as differences of rows are good enough
    std::int64_t table_rows;
    const std::int32_t* knot;  // [num_edges]
    const T* basis;            // [TABLE_STEPS<T>][edges]
    const T* slope;            // [TABLE_STEPS<T>][edges]

    const T* x;  // rows of node features (or of the type table)
    T* out;      // forward: rows that the messages are added to
    const T* g;  // backward: gradient of out

    T* dx;           // backward: rows added to; null where x has no gradient
    T* d_harmonics;  // backward: [(l_max+1)^2][edges], written
    T* d_hidden;     // backward, exact: [edges][hidden_stride], written
    T* d_length;     // backward, table: [edges], written: gradient through the table
    char* scratch;   // `scratch_bytes` of ConvInfo, 64-byte aligned
};

// Exported by generated kernels as `extern "C" const int64_t mdcg_conv_info[8]`, in this order.
struct ConvInfo {
    std::int64_t abi;            // MDCG_CONV_ABI
    std::int64_t item_bytes;     // 4 or 8
    std::int64_t edges;          // capacity of a block, a multiple of 16
    std::int64_t scratch_bytes;  // per thread
    std::int64_t x_width;  // items of a row of x, of out, of the weights and of hidden, padded
    std::int64_t out_width;
    std::int64_t weight_width;
    std::int64_t hidden_stride;  // 0: table only
};

// Exported as `mdcg_conv_forward`, `mdcg_conv_backward` (exact radial network) and
// `mdcg_conv_forward_table`, `mdcg_conv_backward_table`.
template <typename T>
using ConvFunction = void (*)(const ConvBlock<T>*);

}  // namespace mdcg
