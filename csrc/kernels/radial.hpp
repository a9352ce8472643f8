// Arguments of kernels/radial.cuh.
#pragma once

#include "kernels/table_entry.hpp"
#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct RadialArguments {
    Long first, num_edges;  // of the chunk
    Long num_types;
    const int *sender, *receiver, *sender_type, *receiver_type;  // [all edges]
    const double* length;                                        // [all edges]
    const double* numbers;  // of the basis [BASIS], r_max [1 or types^2], r_0 [types^2]
    double basis_factor, a, p, q, power;
    const T* weights;
    const T *sender_rows, *receiver_rows;
    Long sender_width, receiver_width;
    T* kept;    // [tiles][KEPT_ITEMS] for the backward pass, or null
    T* hidden;  // [num_edges][STRIDE]
    const T* d_hidden;
    double* d_length;  // [num_edges]
    // Gradients of the first layer's preactivations, rows of padded OUT[0]: by place, by edge.
    T *d_sender, *d_receiver;  // null: not wanted
    const int* place;          // [all edges]
    // RadialTable of hidden rows: [STRIDE / ALIGN][table_rows][ALIGN], row 0 zeros.
    const T *table, *steps;
    const TableEntry* places;  // [types][types]
    Long table_rows;
};
static_assert(sizeof(RadialArguments<float>) == 240 && sizeof(RadialArguments<double>) == 240);

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
