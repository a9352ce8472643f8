// Arguments of kernels/pair_energy.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct PairArguments {
    Long num_nodes, num_edges, num_types, terms;
    const int *row_ptr, *sender_type, *receiver_type;
    const double* length;                    // [num_edges]
    const T* unit;                           // [num_edges][3]
    const double *factor, *a, *r_max;        // [types][types], receiver and sender
    const double *coefficients, *exponents;  // [terms]
    double power, sign;
    double* energies;       // [num_nodes]
    T* edge_gradient;       // [num_edges][3]
    const int* receiver;    // [num_edges]
    const double* weights;  // [num_nodes] of energies in the sum that is derived; null: ones
};
static_assert(sizeof(PairArguments<float>) == 160 && sizeof(PairArguments<double>) == 160);

}  // namespace mdcg
