// Arguments of kernels/external_potential.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int EXTERNAL_THREADS = 256;

template <typename T>
struct ExternalPotentialArguments {
    Long num_atoms;
    double field[3];          // eV / Å / e
    const double* positions;  // [num_atoms][3] Å
    T* rows;  // [num_atoms][width] two scalars and a vector; backward: gradients, read only
    int width, vector, stride;  // items of a row; where the vector begins; between its components
    double* forces;             // [num_atoms][3] added to; null: the forward pass
    double* virials;            // [num_atoms][6] added to, with forces
};

}  // namespace mdcg
