// Arguments of kernels/copies.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Copies numbers, from or to the device or page-locked memory of the host, and sets other numbers
// and marks to zero.
struct CopyArguments {
    const double* from;
    double* to;
    Long count;
    double* cleared;
    Long num_cleared;
    int* marks;
    Long num_marks;
    // [num_nodes] Row node[i] of the energies, forces and virials is copied to row i; null: row i.
    // All nodes are local. The first item of each of these parts follows.
    const int* node;
    Long num_nodes, energies, forces, virials;
};
static_assert(sizeof(CopyArguments) == 96);

}  // namespace mdcg
