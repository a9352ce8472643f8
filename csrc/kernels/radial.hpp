// Arguments of kernels/radial.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct RadialArguments {
    Long first, num_edges;  // edges of this launch, of all edges
    Long num_types;
    const int* sender;         // [all edges]
    const int* receiver;       // [all edges]
    const int* sender_type;    // [all edges]
    const int* receiver_type;  // [all edges]
    const double* length;      // [all edges] Å
    const double* numbers;     // basis [BASIS], then r_max [1 or types^2], then r_0 [types^2]
    double basis_factor, a, p, q;
    double cutoff;           // power of the polynomial; or where xplor begins to fall, Å
    const T* weights;        // weights of all layers, at the positions in LayerPlaces
    const T* sender_rows;    // [nodes][sender_width], or null
    const T* receiver_rows;  // [nodes][receiver_width], or null
    Long sender_width, receiver_width;
    T* kept;            // [tiles][KEPT_ITEMS] for the backward pass, or null
    T* hidden;          // [num_edges][STRIDE]
    const T* d_hidden;  // [num_edges][STRIDE]
    double* d_length;   // [num_edges]
    T* d_first;  // [num_edges][padded units of layer 0] of its preactivations; null: not wanted
};
static_assert(sizeof(RadialArguments<float>) == 192 && sizeof(RadialArguments<double>) == 192);

// Rows of edges, summed by node and added to rows of nodes.
template <typename T>
struct SumRowsArguments {
    Long count, first_node;      // nodes
    const int* begin;            // [count + 1] positions in `edge`
    const int* edge;             // edges of the nodes; null: edge i is at position i
    T* to;                       // [all nodes][width]
    Long first_edge, num_edges;  // that have rows; others are left out
    const T* rows;               // [num_edges][width]
    Long width;
};
static_assert(sizeof(SumRowsArguments<float>) == 72 && sizeof(SumRowsArguments<double>) == 72);

}  // namespace mdcg
