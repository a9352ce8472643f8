// Arguments of generated kernels of symmetric contractions for CPUs, whose text contains this file.
#pragma once

#include <cstdint>

namespace mdcg {

constexpr std::int64_t MDCG_CONTRACTION_ABI = 1;

// Rows are component-major and padded; widths and strides are constants of the kernel.
template <typename T>
struct ContractionBlock {
    std::int64_t num_nodes;
    const std::int32_t* types;  // [num_nodes]
    const T* x;                 // [num_nodes][width of x]
    const T* coefficients;      // [types or 1][num_coefficients][stride of a block]
    std::int64_t typed;         // 0: one set of coefficients for all types
    T* out;                     // forward: [num_nodes][width of out], written
    const T* g;                 // backward: gradient of out
    T* dx;                      // backward: written, or added to
    std::int64_t accumulate;    // backward: add to dx
};

// Exported as `extern "C" const int64_t mdcg_contraction_info[6]`, in this order.
struct ContractionInfo {
    std::int64_t abi;         // MDCG_CONTRACTION_ABI
    std::int64_t item_bytes;  // 4 or 8
    std::int64_t x_width;     // items of a row of x, of out, and coefficients of a type, padded
    std::int64_t out_width;
    std::int64_t coefficient_width;
    std::int64_t num_coefficients;
};

// Exported as `mdcg_contraction_forward` and `mdcg_contraction_backward`.
template <typename T>
using ContractionFunction = void (*)(const ContractionBlock<T>*);

}  // namespace mdcg
