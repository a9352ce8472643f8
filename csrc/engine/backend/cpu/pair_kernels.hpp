// Sums over runs of points around one atom, compiled for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/pair_functions.hpp"

namespace mdcg {

// Points that follow each other, and the atom that they are around. Pairs further apart than the
// cutoff are left out, and the atom itself. Arrays are readable for one vector beyond the run.
struct PairRun {
    std::int64_t count;
    const double *x, *y, *z;  // [count] Å
    double at[3];             // of the atom, Å
    double cutoff_square;     // Å^2
};

// What pairs exert on an atom: sums of slope * v and slope * v (x) v / 2 with v = at - point, where
// slope is dE/dr / r; so force is minus the first, and the virial minus the second.
struct PairForce {
    double force[3] = {};
    double virial[6] = {};  // xx yy zz xy xz yz
};

struct PairKernels {
    // The sum of counts 1 / (1 + exp(-steepness (radius / r - 1))).
    double (*coordination)(const PairRun& run, double radius, double steepness);
    // Forces of an energy whose derivatives by the coordination numbers of the atom and of the
    // points are `slope` and slopes [count].
    void (*coordination_force)(const PairRun& run, double radius, double steepness, double slope,
                               const double* slopes, PairForce& force);
    // sums[b] += sum over points of g times weights[b][point], b < references. With `force`, that
    // of the energy -g times the sum of c6[b] weights[b].
    void (*dispersion)(const PairRun& run, const PairDamping& damping, int references,
                       const double* const* weights, const double* c6, double* sums,
                       PairForce* force);
};

// Compiled for x86-64-v<level>; see simd() for those to use.
template <int level>
PairKernels pair_kernels();

}  // namespace mdcg
