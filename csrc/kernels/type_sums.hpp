// Arguments of kernels/type_sums.cuh.
#pragma once

#include "kernels/table_entry.hpp"

namespace mdcg {

constexpr int TYPE_SUM_THREADS = 64;  // of a block

template <typename T>
struct TypeSumArguments {
    int first_receiver;                        // of row 0 of sums
    int first_edge;                            // of row 0 of hidden
    int num_types, num_present;                // of the model, of the list's senders
    int receivers;                             // of this launch
    int parts;                                 // of a receiver: see type_sums.cuh
    const int *row_ptr, *num_active, *active;  // edges of receivers
    const int *receiver_types, *sender_type;   // [nodes], [edges]
    const int* number;                         // [num_types] among those present
    const double* length;                      // [edges]
    const T *unit, *factors;                   // [edges][3], [WIDTH]
    const void* table;                         // of units: PolynomialTable::data
    const TableEntry* places;                  // [num_types][num_types]
    T* hidden;                                 // [edges][UNITS]; gradients take their place
    T* sums;                                   // [receivers][WIDTH][num_present][UNITS]
    T* edge_gradient;                          // [edges][3]
    int* short_edges;                          // set where an edge is too short for the table
    double sign;                               // of unit vectors against vectors
};
static_assert(sizeof(TypeSumArguments<float>) == 152 && sizeof(TypeSumArguments<double>) == 152);

}  // namespace mdcg
