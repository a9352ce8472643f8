// Arguments of kernels/total_charge.cuh.
#pragma once

#include "kernels/ewald.hpp"

namespace mdcg {

// Sums of four numbers of each atom, as pairs of integers; see ExactSum. The last is the sum of
// absolute values in TOTAL_UNITS.
constexpr int CHARGE_SUMS = 4, CHARGE_SUM_ITEMS = 2 * CHARGE_SUMS + 1;

template <typename T>
struct TotalChargeArguments {
    Long num_atoms;
    const T* x;        // [num_atoms][width] charges of two spins first
    const T* weights;  // [num_atoms][weight_width]
    T* out;            // [num_atoms][width]
    const T* g;        // [num_atoms][width] gradient of out; null: the forward pass
    T* dx;             // [num_atoms][width]; null: not wanted
    T* d_weights;      // [num_atoms][weight_width]; null: not wanted
    int width, weight_width, add_x, add_weights;
    double wanted[2];  // total of each spin, e
    Long* sums;        // [CHARGE_SUM_ITEMS] of charges of both spins, and of weights
    Long* slopes;      // [CHARGE_SUM_ITEMS] of weights times gradients of both spins
    int* failures;     // [1] not 0: charges are too large; null: not checked
};

}  // namespace mdcg
