// Arguments of kernels/edge_sum.cuh.
#pragma once

#include "kernels/table_entry.hpp"
#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct EdgeSumArguments {
    Long num_receivers;
    Long num_types, typed, tanh_square;  // typed: r_max by types; tanh_square: activation
    const int* row_ptr;                  // [num_receivers + 1]
    const int* num_active;               // [num_receivers]
    const int* active;                   // [edges]
    const int* types;                    // [nodes]
    const int* sender_type;              // [edges]
    const double* length;                // [edges] Å
    const T* unit;                       // [edges][3]
    const double* r_max;                 // [1 or num_types^2]
    double power;                        // exponent of the outputs' cutoff; 0: none
    double sign;               // sign of the unit vector relative to pos[receiver] - pos[sender]
    const T* table;            // PolynomialTable::data
    const TableEntry* places;  // [num_types][num_types]
    Long outputs, columns, width;  // number of sums; columns of the table; items of a row
    T* out;                        // [nodes][width]
    const T* d_out;                // [nodes][width]
    T* edge_gradient;              // [edges][3]
};
static_assert(sizeof(EdgeSumArguments<float>) == 176 && sizeof(EdgeSumArguments<double>) == 176);

}  // namespace mdcg
