// What a convolution kernel gets, generated or generic: one block of edges, ready to contract.
// Generated text contains this file; MDCG_CONV_ABI changes with the struct.
#pragma once

#include <cstdint>

namespace mdcg {

constexpr std::int64_t MDCG_CONV_ABI = 6;

template <typename T>
struct EdgeWeights;  // of the engine

// Edges of a block, and some of their columns of weights.
struct WeightTile {
    std::int64_t first, count;    // edges
    std::int64_t column, panels;  // first column, and number of panels of 64 bytes (A items)
};

// Geometry and radial values of a block are made by the engine, in the cache; the kernel applies
// the paths and adds to rows. It asks the engine for the weights of the edges, one tile at a time.
//
// Columns of weights are padded per path: path p starts at the sum of the strides before it, its
// stride is its multiplicity rounded up to 64 bytes; padding columns are zero.
template <typename T>
struct ConvBlock {
    std::int64_t num_edges;        // 1 .. `edges` of ConvInfo
    const std::int32_t* sender;    // [num_edges] row of x (node, or type where x is a table)
    const std::int32_t* receiver;  // [num_edges] row of out and g; equal ones stand together
    const T* harmonics;            // [(l_max+1)^2][edges], column = edge, unused columns zero

    const EdgeWeights<T>* weights;
    // Writes w [count][panels * A]; backward with a table, also the derivatives with respect to the
    // length, of the same shape. `slope` is null if they are not wanted.
    void (*fill_weights)(const EdgeWeights<T>* weights, WeightTile tile, T* w, T* slope);
    // Takes the gradients of weights, [count][panels * A]; null: a table, for which the kernel sums
    // their products with the slopes.
    void (*add_gradient)(const EdgeWeights<T>* weights, WeightTile tile, const T* dw);

    const T* x;  // rows of node features (or of the type table)
    T* out;      // forward: rows that the messages are added to
    const T* g;  // backward: gradient of out

    T* dx;           // backward: rows added to; null where x has no gradient
    T* d_harmonics;  // backward: [(l_max+1)^2][edges], written
    T* d_length;     // backward, table: [edges], written: gradient through the table
    char* scratch;   // `scratch_bytes` of ConvInfo, 64-byte aligned
};

// Exported by generated kernels as `extern "C" const int64_t mdcg_conv_info[7]`, in this order.
struct ConvInfo {
    std::int64_t abi;            // MDCG_CONV_ABI
    std::int64_t item_bytes;     // 4 or 8
    std::int64_t edges;          // capacity of a block, a multiple of 16
    std::int64_t scratch_bytes;  // per thread
    std::int64_t x_width;        // items of a row of x, of out and of the weights, padded
    std::int64_t out_width;
    std::int64_t weight_width;
};

// Exported as `mdcg_conv_forward` and `mdcg_conv_backward`.
template <typename T>
using ConvFunction = void (*)(const ConvBlock<T>*);

}  // namespace mdcg
