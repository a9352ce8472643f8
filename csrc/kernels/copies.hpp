// Arguments of kernels/copies.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Where a step puts the positions of atoms: in the order of the nodes, and in the cell where the
// list was made. Null pointers: as they are given.
struct PlacedNodes {
    const int* node;     // [atoms]
    const int* wraps;    // [atoms][3] cells by which an atom's given position is away from there
    const double* cell;  // [3][3] rows are vectors; open directions: zeros
};

// Copies numbers, from or to the device or page-locked memory of the host, and sets other numbers
// and marks to zero.
struct CopyArguments {
    const double* from;  // [count]
    double* to;          // [count]
    Long count;
    double* cleared;  // [num_cleared]
    Long num_cleared;
    int* marks;  // [num_marks]
    Long num_marks;
    PlacedNodes placed;  // if numbers are positions
    // Row node[i] of the energies, forces and virials is copied to row i; null: row i. `energies`,
    // `forces` and `virials` are the first item of each of these parts.
    const int* node;  // [num_nodes], the first num_local below num_local
    Long num_local, num_nodes, energies, forces, virials;
};
static_assert(sizeof(CopyArguments) == 128);

}  // namespace mdcg
