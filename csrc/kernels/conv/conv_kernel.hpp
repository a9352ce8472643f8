// Arguments of convolution kernels for CPUs, generated or generic: one block of edges.
// Generated text contains this file; MDCG_CONV_ABI changes with the struct.
#pragma once

#include <cstdint>

namespace mdcg {

constexpr std::int64_t MDCG_CONV_ABI = 6;

template <typename T>
struct EdgeWeights;  // defined in the engine

// Some edges of a block, and some columns of their weights.
struct WeightTile {
    std::int64_t first, count;    // edges
    std::int64_t column, panels;  // first column, and number of panels of 64 bytes (A items)
};

// The engine computes the harmonics of a block, which stay in the processor's cache; the kernel
// applies the paths and adds to rows. It asks the engine for the weights, one tile at a time.
//
// Columns of weights are padded per path: the stride of a path is its multiplicity rounded up to 64
// bytes, and a path starts at the sum of the strides before it. Padding columns are zero.
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
    // Takes the gradients of weights, [count][panels * A]. Null if the weights come from a table:
    // the kernel then sums the products of these gradients with the slopes.
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
