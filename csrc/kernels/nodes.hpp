// Arguments of the kernels of kernels/nodes.cuh that are not in row_functions.hpp.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct GatherArguments {
    const T* rows;    // [num_nodes * width]
    T* out;           // [count * width]
    const int* node;  // [count], -1: zeros
    Long count;
    int width;
};
static_assert(sizeof(GatherArguments<float>) == 40 && sizeof(GatherArguments<double>) == 40);

// Received rows are added to the rows of their nodes, in the order of the list.
template <typename T>
struct AddArguments {
    T* rows;            // [num_nodes * width]
    const T* received;  // [rows received * width]
    const int* node;    // [count]
    const int* first;   // [count + 1], in `place`
    const int* place;   // [first[count]] rows of `received`
    Long count;
    int width;
};
static_assert(sizeof(AddArguments<float>) == 56 && sizeof(AddArguments<double>) == 56);

}  // namespace mdcg
