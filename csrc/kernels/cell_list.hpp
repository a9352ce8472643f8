// Arguments of kernels/cell_list.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Points that a warp divides into groups. It numbers them with 8 bits.
constexpr int GROUPED_POINTS = 96;
static_assert(GROUPED_POINTS % 32 == 0 && GROUPED_POINTS < 256);

struct CellArguments {
    Long num_points, num_nodes, num_bins;
    // Points after the local ones that are nodes themselves are in bins of their own, which follow
    // the bins of local nodes; 0: there are none.
    Long outer_bins;
    // In page-locked memory of the host; copied, like the cell, to the addresses below.
    const double* host_given;  // [num_points][3]
    const int* host_types;     // [num_nodes]
    const int* host_node;      // [num_points], or null
    const int* host_image;     // [num_points], or null
    double given_cell[9];
    double* given;  // [num_points][3] in the caller's order; so are given_types and given_wraps
    double* cell;   // [3][3]; open directions: zeros
    double inverse[9], low[3], scale[3];  // bin = (fraction along the vector - low) * scale
    int bins[3], tiles[3], stencil[3], periodic[3];
    double square;               // squared search radius, Å^2
    int* given_types;            // [num_nodes]
    int* given_wraps;            // [num_points][3] cells that a point is away from the first one
    unsigned* key;               // [num_points] bin of each given point
    const unsigned* sorted_key;  // [num_points]
    const int* sorted;           // [num_points] given points in the order of their bins
    int* bin_ptr;                // [num_bins + outer_bins + 1]
    double* places;              // [num_points][3] of sorted points, in the first cell
    int* point_node;             // [num_points] the node that a given point is, or is a copy of
    int* point_image;            // [num_points]; null: the image of the bin where it is found
    Long num_local;              // the first given points, which have edges
    int* row_ptr;                // [num_local + 1]
    unsigned long long* total;   // [1] edges
    int* sender;                 // [edges]
    int* image;                  // [edges]
    // The rest is used only where every point is a node. Nodes k * group to (k + 1) * group - 1
    // are close in space; if group < 2, nodes are in the order of bins.
    Long group;
    int* order;  // [num_points] given point of each node, in memory of the host
    int* types;  // [num_points] by node
};
static_assert(sizeof(CellArguments) == 464);

}  // namespace mdcg
