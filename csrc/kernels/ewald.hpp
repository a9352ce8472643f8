// Waves of a cell, and arguments of kernels/ewald.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr double CHARGE_UNITS =
    1099511627776.0;  // 2^40: sums are integers of 2^-40 e, which add in any order
constexpr double MAX_CHARGE = 4194304.0;  // 2^22 e; sums of charges below this fit into 64 bits

// The waves exp(2 pi i (n1 s1 + n2 s2 + n3 s3)) with the same n1 and n2, where s are fractions of
// the cell. They are pairs with n3 = m and -m for m = from, from + 1, ...
struct WaveColumn {
    int n1, n2, from, count;
    Long first;  // number of the first pair
};
static_assert(sizeof(WaveColumn) == 24);

// The pairs of a thread, of one column: m, m + step, m + 2 step, ... , with the numbers pair,
// pair + step, ...
constexpr int THREAD_PAIRS = 4;
struct WavePairs {
    int n1, n2, m, step;
    Long pair;
};
static_assert(sizeof(WavePairs) == 24);

constexpr int EWALD_TILE = 32;  // atoms, one for each lane of a warp
constexpr int EWALD_ROW = 33;   // items of a row of a tile: threads read rows at the same time
constexpr int EWALD_WARPS = 8, EWALD_THREADS = 32 * EWALD_WARPS;

// What depends on the cell. With sums t and f of the waves or pairs of a charge q, dE/dq is
// scale t + own q, and component d of the force q sum_j f_j field[j][d].
struct EwaldCell {
    double inverse[9];  // of the cell
    double field[9];
    double scale, own;
    double square;  // sigma^2, Å^2
    double unused;
};
static_assert(sizeof(EwaldCell) == 176);

template <typename T>
struct EwaldArguments {
    const double* positions;    // [num_nodes][3] Å
    const T* charges;           // [num_local][width]
    const EwaldCell* cell;      // [1]
    const WavePairs* pairs;     // [num_threads]
    const WaveColumn* columns;  // [num_columns]
    const double* weights;      // [num_pairs][2] of m and -m
    Long* sums;                 // [num_pairs][4] in CHARGE_UNITS, then the sum of absolute charges
    const Long* own_sums;       // [num_pairs][4] of the atoms of this process
    double* factors;            // [num_pairs][4] of the sums of waves, see kernels/ewald.cuh
    double* parts;              // [splits][4][num_local] parts of the sums t and f
    double* virials;            // [num_virials][9] parts of the virial
    double* potentials;         // [num_local] dE/dq
    double* own_forces;         // [num_local][3] eV/Å
    double* energies;           // [num_local], added to
    double* forces;             // [num_nodes][3], added to
    double* node_virials;       // [num_nodes][9], or null; the first row is added to
    T* gradient;                // [num_local][width]
    double sigma;               // Å
    Long num_local, num_threads, num_columns, num_pairs, num_virials;
    int bounds[3];  // largest |n| of each direction
    int chunks, splits, width, add, unused;
};
static_assert(sizeof(EwaldArguments<float>) == 216);

}  // namespace mdcg
