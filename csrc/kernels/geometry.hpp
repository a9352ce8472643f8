// Arguments of kernels/geometry.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// What is added to pos[receiver] - pos[sender], Å. At most one of the first two is not null.
struct EdgeShifts {
    const double* shift;  // [num_edges][3]
    // [num_edges] number of a row of `table`. If `packed`: factors of the three rows of `table`,
    // which are three numbers of 10 bits, each plus 512.
    const int* image;
    const double* table;  // [rows][3]
    Long packed;
};
static_assert(sizeof(EdgeShifts) == 32);

template <typename T>
struct GeometryArguments {
    Long num_local;
    const int* row_ptr;  // [num_local + 1]
    const int* sender;   // [num_edges]
    EdgeShifts shifts;
    const double* positions;  // [num_nodes][3] Å
    T* unit;                  // [num_edges][3]
    double* length;           // [num_edges]
    int* active;              // [num_edges] active edges of each receiver, from row_ptr on
    int* by_length;           // [num_edges] the same in another order: see device_edges.hpp
    const int* sender_type;   // [num_edges]; null: by_length is not by type
    int* num_active;          // [num_local]
    int* failures;            // [1]
    double r_max, sign;
    // Pairs: see csrc/engine/cuda/device_edges.hpp.
    Long group;            // receivers of a group; 0: no pairs
    const int* by_group;   // [num_edges]
    const int* pair_row;   // [num_edges]
    int* active_pairs;     // [num_edges]
    int* active_pair_row;  // [num_edges]
    int* num_pairs;        // [groups]
    int* active_rows;      // [rows] all 0 before the kernel
};
static_assert(sizeof(GeometryArguments<float>) == 192 && sizeof(GeometryArguments<double>) == 192);

template <typename T>
struct AssembleArguments {
    Long num_nodes, num_local;
    const int* row_ptr;     // [num_local + 1]
    const int* sender_ptr;  // [num_nodes + 1]
    const int* by_sender;   // [num_edges]
    const int* sender;      // [num_edges]
    const int* receiver;    // [num_edges]
    EdgeShifts shifts;
    const double* positions;  // [num_nodes][3] Å
    const T* gradient;        // [parts][edges][3], whose sum is dE/dvec
    Long parts, num_edges;
    double* forces;   // [num_nodes][3]
    double* virials;  // [num_nodes][9] or null
};
static_assert(sizeof(AssembleArguments<float>) == 136 && sizeof(AssembleArguments<double>) == 136);

// forces += own_forces, virials += own_virials.
struct OwnForceArguments {
    const double* own_forces;   // [num_local][3]
    const double* own_virials;  // [num_local][6] xx yy zz xy xz yz
    double* forces;             // [num_local][3]
    double* virials;            // [num_local][9], or null
    Long num_local;
};
static_assert(sizeof(OwnForceArguments) == 40);

}  // namespace mdcg
