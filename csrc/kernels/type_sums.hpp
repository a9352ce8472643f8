// Arguments of kernels/type_sums.cuh.
#pragma once

#include "kernels/table_entry.hpp"

namespace mdcg {

constexpr int TYPE_SUM_THREADS = 64;  // threads per block

template <typename T>
struct TypeSumArguments {
    int first_receiver;          // receiver of row 0 of sums
    int num_types, num_present;  // types of the model, types of the list's senders
    int receivers;               // receivers of this launch
    int parts;                   // warps that share a receiver
    const int* row_ptr;          // [receivers + 1] edges of all receivers
    const int* num_active;       // [receivers]
    const int* active;           // [edges]
    const int* receiver_types;   // [nodes]
    const int* sender_type;      // [edges]
    const int* number;           // [num_types] among those present
    const double* length;        // [edges] Å
    const T* unit;               // [edges][3]
    const T* factors;            // [WIDTH] of harmonics
    const void* table;           // PolynomialTable::data of the hidden units
    const TableEntry* places;    // [num_types][num_types]
    T* sums;                     // [receivers][WIDTH][num_present][UNITS]
    T* edge_gradient;            // [edges][3]
    double sign;                 // sign of the unit vector relative to pos[receiver] - pos[sender]
};
static_assert(sizeof(TypeSumArguments<float>) == 136 && sizeof(TypeSumArguments<double>) == 136);

}  // namespace mdcg
