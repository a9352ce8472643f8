// Arguments of kernels/harmonics.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct HarmonicsArguments {
    Long first, num_edges;   // edges of this launch, of all edges
    const T* unit;           // [all edges][3], zeros: a dead edge
    const double* length;    // [all edges]
    const T* factors;        // [WIDTH]
    T* harmonics;            // [num_edges][WIDTH]
    const T* d_harmonics;    // [num_edges][WIDTH]
    const double* d_length;  // [num_edges]
    T* edge_gradient;        // [all edges][3]
    double sign;             // sign of the unit vector relative to pos[receiver] - pos[sender]
};
static_assert(sizeof(HarmonicsArguments<float>) == 80 && sizeof(HarmonicsArguments<double>) == 80);

}  // namespace mdcg
