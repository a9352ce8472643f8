// Arguments of kernels/gemm.cuh.
#pragma once

namespace mdcg {

constexpr int GEMM_PRODUCTS = 16, GEMM_PARTS = 64;  // largest numbers of a launch

// A part of the shared dimension: `depth` items of a's rows from `at` on, where components are
// `step` items apart, and `depth` rows of b from `row` on.
struct GemmPart {
    int at, step, depth, row;
};
static_assert(sizeof(GemmPart) == 16);

// Row r is component r % batch of node r / batch, or of node list[r / batch].
template <typename T>
struct GemmProduct {
    const T* a;       // [nodes][a_width]
    const T* b;       // [all depths][columns]
    const T* images;  // [slices of rows][tiles of columns] of b, for gemm_warpgroup.cuh; null: none
    T* c;             // [nodes][c_width]
    const int* list;  // [nodes]; null: 0, 1, 2, ..
    const T* bias;    // [columns], added; null: none
    const int* bias_types;  // not null: bias [types][columns], by type of the node
    int a_width, c_width;   // items from one node to the next
    int c_step;             // items from one component to the next
    int batch;
    int columns;  // a multiple of 64 bytes
    int rows;
    int first_block;
    int add;
    int first_part, parts;
};
static_assert(sizeof(GemmProduct<float>) == 96 && sizeof(GemmProduct<double>) == 96);

template <typename T>
struct GemmProducts {
    GemmProduct<T> product[GEMM_PRODUCTS];
    GemmPart part[GEMM_PARTS];
    int count;
};
static_assert(sizeof(GemmProducts<float>) == 2568 && sizeof(GemmProducts<double>) == 2568);

}  // namespace mdcg
