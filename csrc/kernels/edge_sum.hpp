// Arguments of kernels/edge_sum.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct EdgeSumArguments {
    Long first, num_edges;               // of the chunk
    Long first_receiver, num_receivers;  // of the chunk
    Long num_types, typed, tanh_square;  // typed: r_max by types; tanh_square: activation
    const int *row_ptr, *receiver, *sender_type, *receiver_type;
    const double* length;                // [all edges]
    const T* unit;                       // [all edges][3]
    const double* r_max;                 // [1 or types^2]
    double power;                        // of the cutoff outside of the activation; 0: none
    double sign;                         // of the unit vector against pos[receiver] - pos[sender]
    const T* hidden;                     // [num_edges][stride]
    const double* last;                  // [units][outputs]
    Long stride, units, outputs, width;  // width: of rows of out
    double* values;                      // [num_edges][outputs]
    T* out;                              // [nodes][width]
    const T* d_out;
    T* d_hidden;       // [num_edges][stride]
    T* edge_gradient;  // [all edges][3]
};
static_assert(sizeof(EdgeSumArguments<float>) == 216 && sizeof(EdgeSumArguments<double>) == 216);

}  // namespace mdcg
