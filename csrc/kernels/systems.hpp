// Arguments of kernels/systems.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Systems that do not interact. Their nodes follow each other.
struct SystemArguments {
    Long num_nodes, num_systems;
    const int* first_node;      // [num_systems + 1]
    const double* given;        // [num_nodes][3] positions
    const double* cell;         // [num_systems][3][3]; open directions: zeros
    const double* inverse;      // [num_systems][3][3]; open directions: columns of zeros
    const int* steps;           // [num_systems][3] images on either side along each vector
    double square;              // squared search radius, Å^2
    int* system;                // [num_nodes]
    double* positions;          // [num_nodes][3] inside the cell
    int* row_ptr;               // [num_nodes + 1]
    unsigned long long* total;  // [1] edges
    int* sender;                // [num_edges]
    double* shift;              // [num_edges][3]
};
static_assert(sizeof(SystemArguments) == 112);

struct SystemSumArguments {
    Long num_systems;
    const int* first_node;    // [num_systems + 1]
    const double* positions;  // [num_nodes][3]
    const double* energies;   // [num_nodes]
    const double* forces;     // [num_nodes][3], or null
    const double* virials;    // [num_nodes][9], or null
    double* energy;           // [num_systems]
    double* virial;           // [num_systems][9]
    int* finite;              // [num_systems]
};
static_assert(sizeof(SystemSumArguments) == 72);

}  // namespace mdcg
