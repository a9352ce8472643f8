// Arguments of kernels/ewald.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Sums of charges are integers of 2^-40 e, which add in any order. They fit into 64 bits while the
// absolute values of all charges add up to less than MAX_CHARGE.
constexpr double CHARGE_UNITS = 0x1p40;
constexpr double MAX_CHARGE = 0x1p22;  // e

// The waves exp(2 pi i (n1 s1 + n2 s2 + n3 s3)) with the same n1 and n2, where s are fractions of
// the cell. They are pairs with n3 = m and -m for m = from, from + 1, ...
struct WaveColumn {
    int n1, n2, from, count;
    Long first;  // number of the first pair
};

// Atoms of a tile; columns and m of a block of wave_sums; columns of a tile of wave_fields.
constexpr int WAVE_ATOMS = 64, SUM_COLUMNS = 64, SUM_WAVES = 16, FIELD_COLUMNS = 16;
constexpr int WAVE_THREADS = 128;    // of a block of wave_sums and wave_fields
constexpr int FACTOR_COLUMNS = 8;    // columns of a block of wave_factors
constexpr double TOTAL_UNITS = 256;  // per e, in the total of absolute charges

template <typename T>
struct EwaldArguments {
    Long num_atoms;
    const double* positions;  // [num_atoms][3] Å
    const T* x;               // [num_atoms][width] charges
    T* gradient;              // [num_atoms][width] of x, or null
    int width, add;           // add, not 0: add to `gradient`
    double* energies;         // [num_atoms], added to
    double* forces;           // [num_atoms][3], added to, or null
    double* virials;          // [num_atoms][6] xx yy zz xy xz yz, added to, or null
    double own;               // added to dE/dq for each e of a charge
    double sigma;             // Å
    double unit;              // 1 / (4 pi epsilon_0), eV Å / e^2; for open systems
    // In a cell:
    double inverse[9];  // of the cell [3][3], whose rows are vectors
    int bounds[3];      // largest |n|
    int padded;         // num_atoms, rounded up to a multiple of WAVE_ATOMS
    Long num_columns, num_sums;
    Long sum_tiles;             // tiles of SUM_WAVES m, from m = 0 on
    Long num_splits;            // blocks that share the atoms of a tile of columns
    Long num_parts;             // sums over columns of which a field consists
    const WaveColumn* columns;  // [num_columns]
    const double* weights;      // [pairs][2] of n3 = m and -m; 0: not a wave
    T* charges;                 // [padded] zeros behind the atoms
    T* powers[3];    // [bounds[d] + 1][padded][2] cosine and sine of n s in each direction
    Long* sums;      // [num_sums] of all processes: [pairs][4]; then the sum of absolute charges
    Long* own_sums;  // [num_sums] of this process
    T* factors;      // [pairs][4]
    double* fields;  // [num_parts][4][padded] sums of re(t), n1 im(t), n2 im(t), n3 im(t)
    double* virial_sums;  // [blocks of wave_factors][6]
    int* failures;        // [1] not 0: the charges are too large
};
static_assert(sizeof(EwaldArguments<float>) == 312 && sizeof(EwaldArguments<double>) == 312);

}  // namespace mdcg
