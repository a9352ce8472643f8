// Arguments of kernels/multipoles.cuh.
#pragma once

#include "kernels/ewald.hpp"
#include "kernels/gaussian_pairs.hpp"

namespace mdcg {

// Rows of charges, and perhaps of dipoles, of some channels.
template <typename T>
struct MultipoleRows {
    T* rows;             // [num_atoms][width]; null: not wanted
    int width, vectors;  // items of a row; where its vectors begin, 0: there are none
    int stride;          // between components of vectors
};

constexpr int MULTIPOLE_THREADS = 128;
constexpr int VIRIAL_WAVES = 1024;  // waves of a block of multipole_virial

// Factors [receivers][2] are for charges and for dipoles; that of channel c is c % receivers.
template <typename T>
struct MomentArguments {
    Long num_atoms, padded;  // atoms, and the same rounded up
    int channels, receivers;
    MultipoleRows<const T> x;
    const double* factors;  // [receivers][2]
    T* moments;             // [channels][4][padded] charge and dipole times factors
    Long* total;     // [1] added to: sum of absolute charges in TOTAL_UNITS; null: not wanted
    double longest;  // longest wave vector, 1/Å: dipoles count as charges times this
};

// Waves 2 i and 2 i + 1 belong to pair i.
template <typename T>
struct AmplitudeArguments {
    Long num_pairs;
    int channels, parts, receivers;
    const double* vectors;  // [waves][3] 1/Å
    const double* weights;  // [waves], 0: not a wave
    const Long* sums;       // [channels][parts][pairs][4] see EwaldArguments
    const Long* total;      // [1]
    double* amplitudes;     // [channels][waves][2] of this process
    double* combined;       // [channels / receivers][waves][2] sums over receivers; null: none
    const double* widths;   // [receivers] squares, Å^2
    int* failures;          // [1] not 0: charges are too large; null: not checked
};

template <typename T>
struct MultipoleFactors {
    Long num_pairs;
    const double* vectors;     // [waves][3]
    const double* weights;     // [waves]
    const double* amplitudes;  // [waves][2] of all processes
    double variance;           // the sum is multiplied by exp(-variance k^2 / 2)
    int direction;             // not negative: by -i times this component of k, too
    T* factors;                // [pairs][4] see EwaldArguments
};

template <typename T>
struct CollectArguments {
    Long num_atoms, padded, num_parts;
    double inverse[9];     // of the cell
    const double* fields;  // [num_parts][4][padded]
    int direction;         // of MultipoleFactors
    double* potentials;    // [10][padded] value, slope, and derivatives xx yy zz xy xz yz
};

template <typename T>
struct FieldArguments {
    Long num_atoms, padded;
    int channels, receivers;   // of out
    MultipoleRows<const T> x;  // channels / receivers channels
    MultipoleRows<T> out;
    const double* potentials;      // [channels][10][padded]
    const double *factors, *owns;  // [receivers][2] of potentials, and of x
};

// What acts on moments in potentials. All results are added.
template <typename T>
struct MultipoleForces {
    Long num_atoms, padded;
    int channels, dipoles;     // dipoles, not 0: there are any, and second derivatives
    const T* moments;          // [channels][4][padded]
    const double* potentials;  // [channels][10][padded]
    double* energies;          // [num_atoms]; null: not wanted
    double* forces;            // [num_atoms][3]; null: not wanted
    double* virials;           // [num_atoms][6]; null: not wanted
};

// Adds to the gradient of x factors times potentials, and owns times another value, which has
// `receivers` channels for each channel of x. For energies, the value is x.
template <typename T>
struct GradientArguments {
    Long num_atoms, padded;
    int channels, receivers, add;
    MultipoleRows<T> gradient;
    MultipoleRows<const T> other;
    const double* potentials;  // [channels][10][padded]; null: not wanted
    const double* factors;     // [1][2]
    const double* owns;        // [receivers][2]
    double* energies;          // [num_atoms] half of owns times squares is added; null: not wanted
};

template <typename T>
struct MultipoleVirial {
    Long num_waves, num_blocks;  // blocks of a channel
    int channels, receivers;
    const double* vectors;  // [waves][3]
    const double* weights;  // [waves]
    const double* mine;     // [channels][waves][2] of this process
    const double* all;      // [channels / receivers][waves][2] of all processes
    const double* widths;   // [receivers] squares, Å^2
    double variance;        // of sources, Å^2
    double factor;
    double* sums;     // [channels * num_blocks][6]
    double* virials;  // [6] added to
};

// Sums over pairs of points in an open system.
template <typename T>
struct PointArguments {
    Long num_atoms, padded;
    const double* positions;  // [num_atoms][3] Å
    int channels, receivers;  // of potentials and slopes
    PointPairs pairs;
    double variance;       // of sources, Å^2
    const double* widths;  // [receivers] squares, Å^2
    const T* moments;      // [channels / receivers][4][padded]
    const T* slopes;       // [channels][4][padded] derivatives by potentials; null: none yet
    // Without slopes [channels][10][padded] of moments, otherwise [channels /
    // receivers][10][padded] of slopes
    double* potentials;
    double* forces;   // [num_atoms][3] added to, with slopes
    double* virials;  // [num_atoms][6] added to, with slopes
};

}  // namespace mdcg
