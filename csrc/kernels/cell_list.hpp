// Arguments of kernels/cell_list.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

struct CellArguments {
    Long num_nodes, num_bins;
    const double* given;  // [num_nodes][3] in the order given, as everything of `given`
    const double* cell;   // [3][3]; open directions: zeros
    double inverse[9], low[3], scale[3];  // low, scale: along each vector, to numbers of bins
    int bins[3], tiles[3], stencil[3], periodic[3];
    double square;  // of the reach, Å^2
    const int* given_types;
    int* given_wraps;  // [num_nodes][3] cells that an atom is away from the first one
    unsigned* key;     // [num_nodes] bins of given atoms
    const unsigned* sorted_key;
    const int* node;  // [num_nodes] given number of each
    int* bin_ptr;     // [num_bins + 1]
    int* types;
    double* positions;          // in the first cell
    int* row_ptr;               // [num_nodes + 1]
    unsigned long long* total;  // edges
    int *sender, *image;
    // Null where every point is a node of its own; else what a given point is a copy of, and where.
    const int *point_node, *point_image;
    Long num_local;  // given points that have edges, the first ones
};
static_assert(sizeof(CellArguments) == 328);

}  // namespace mdcg
