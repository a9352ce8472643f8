// The parameter of all kernels of convolutions with weights per edge.
#pragma once
#include "kernels/vectors.cuh"

// Operands and results; null where a pass has none.
struct Arguments {
    const int* __restrict__ order;    // [num_edges] edges by receiver: rows of y, w, dy, dw
    const int* __restrict__ sender;   // [num_edges] rows of x, in that order
    const int* __restrict__ row_ptr;  // [n_rows + 1] first edge of each receiver, in that order
    const int* __restrict__ place;    // [num_edges] rows of dx, in that order, if DETERMINISTIC
    Long n_rows;                      // receivers, or rows
    const T* __restrict__ x;          // [num_nodes * X_ROW] features
    const T* __restrict__ y;          // [num_edges * ATTRIBUTES]
    const T* __restrict__ w;          // [num_edges * WEIGHTS]; [WEIGHTS] if SHARED_WEIGHTS
    const T* __restrict__ g;          // [n_rows * OUT_ROW] gradient of out
    T* __restrict__ out;              // [n_rows * OUT_ROW]
    T* __restrict__ dx;               // [num_nodes * DX_ROW]; [num_edges * DX_ROW] if DETERMINISTIC
    T* __restrict__ dy;               // [num_edges * ATTRIBUTES]
    T* __restrict__ dw;        // as w; [blocks * WEIGHTS] if SHARED_WEIGHTS and DETERMINISTIC
    const T* __restrict__ xa;  // [num_nodes * X_ROW] cotangent of dx
    const T* __restrict__ yb;  // [num_edges * ATTRIBUTES] cotangent of dy
    const T* __restrict__ wc;  // as w, cotangent of dw
};
