// Arguments of kernels/harmonics.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

template <typename T>
struct HarmonicsArguments {
    Long first, num_slots;  // of the chunk
    const T* unit;          // [all slots][3], zeros: a dead slot
    const double* length;   // [all slots]
    const T* factors;       // [WIDTH]
    T* harmonics;           // [num_slots][WIDTH]
    const T* d_harmonics;
    const double* d_length;  // [num_slots]
    T* edge_gradient;        // [all slots][3]
    double sign;             // of the unit vector against pos[receiver] - pos[sender]
};
static_assert(sizeof(HarmonicsArguments<float>) == 80 && sizeof(HarmonicsArguments<double>) == 80);

}  // namespace mdcg
