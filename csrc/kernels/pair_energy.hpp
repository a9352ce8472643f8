// Arguments of kernels/pair_energy.cuh.
#pragma once

#include "kernels/pair_functions.hpp"

namespace mdcg {

template <typename T>
struct PairArguments {
    Long num_nodes, num_edges, num_types;
    const int* row_ptr;        // [num_nodes + 1]
    const int* sender_type;    // [num_edges]
    const int* receiver_type;  // [num_edges]
    const double* length;      // [num_edges] Å
    const T* unit;             // [num_edges * 3]
    ScreenedRepulsion repulsion;
    double sign;
    double* energies;       // [num_nodes], added to
    T* edge_gradient;       // [num_edges * 3], added to
    const int* receiver;    // [num_edges]
    const double* weights;  // [num_nodes] of energies in the sum that is derived; null: ones
};

}  // namespace mdcg
