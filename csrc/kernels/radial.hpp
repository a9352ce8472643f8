// Arguments of kernels/radial.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct RadialArguments {
    Long first, num_edges;  // of the chunk
    Long num_types;
    const int* sender;         // [all edges]
    const int* receiver;       // [all edges]
    const int* sender_type;    // [all edges]
    const int* receiver_type;  // [all edges]
    const double* length;      // [all edges] Å
    const double* numbers;     // of the basis [BASIS], r_max [1 or types^2], r_0 [types^2]
    double basis_factor, a, p, q, power;
    const T* weights;        // of all layers, where the constants of radial_network.cuh say
    const T* sender_rows;    // [nodes][sender_width], or null
    const T* receiver_rows;  // [nodes][receiver_width], or null
    Long sender_width, receiver_width;
    T* kept;            // [tiles][KEPT_ITEMS] for the backward pass, or null
    T* hidden;          // [num_edges][STRIDE]
    const T* d_hidden;  // [num_edges][STRIDE]
    double* d_length;   // [num_edges]
    // Gradients of the first layer's preactivations, in rows of padded OUT[0]; null: not wanted.
    T* d_sender;       // [num_edges], rows by place
    T* d_receiver;     // [num_edges], rows by edge
    const int* place;  // [all edges]
};
static_assert(sizeof(RadialArguments<float>) == 208 && sizeof(RadialArguments<double>) == 208);

// Rows of a chunk, those of one node side by side, added to rows of nodes.
template <typename T>
struct SumRowsArguments {
    Long count;       // nodes
    const int* node;  // [count]; null: first_node, ..
    Long first_node;
    const int* begin;  // [count + 1] rows of a node
    Long first_row;    // what `begin` calls the first of the chunk
    const T* rows;     // [rows][width]
    T* to;             // [nodes][width]
    Long width;
};
static_assert(sizeof(SumRowsArguments<float>) == 64 && sizeof(SumRowsArguments<double>) == 64);

}  // namespace mdcg
