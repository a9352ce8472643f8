// Sums over pairs of one atom with runs of points (see Points), for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/pair_functions.hpp"

namespace mdcg {

// A run of points, and the atom whose pairs with them are summed. Pairs further apart than the
// cutoff and the atom itself are left out. Arrays are readable for one vector beyond the run.
struct PairRun {
    std::int64_t count;
    const double *x, *y, *z;  // [count] Å
    double at[3];             // position of the atom, Å
    double cutoff_square;     // Å^2
};

// The gradient of the energy of pairs: with v = at - point and slope = dE/dr / r, the sums of
// slope * v and of slope * v (x) v / 2. Force and virial of the atom are minus these.
struct PairForce {
    double force[3] = {};
    double virial[6] = {};  // xx yy zz xy xz yz
};

struct PairKernels {
    // Returns the sum of 1 / (1 + exp(-steepness (radius / r - 1))).
    double (*coordination)(const PairRun& run, double radius, double steepness);
    // Adds the forces of an energy whose derivatives by the coordination numbers of the atom and of
    // the points are `slope` and slopes [count].
    void (*coordination_force)(const PairRun& run, double radius, double steepness, double slope,
                               const double* slopes, PairForce& force);
    // Adds to sums [references] the sums over points of g times weights [references][count]. If
    // `force` is not null, adds the forces of the energies -g sum_b c6[b] weights[b].
    void (*dispersion)(const PairRun& run, const PairDamping& damping, int references,
                       const double* const* weights, const double* c6, double* sums,
                       PairForce* force);
};

// The kernels compiled for x86-64-v<level>; simd() chooses the level.
template <int level>
PairKernels pair_kernels();

}  // namespace mdcg
