// The window that spreads charges on a mesh, and arguments of kernels/particle_mesh.cuh. The
// including file declares exponential(V) and square_root(V) before.
#pragma once

#include "kernels/ewald.hpp"

namespace mdcg {

// Points that a charge is spread on along a direction. On a mesh twice as fine as the waves, errors
// of forces are 3e-6 of the largest force with 8 points, and 1e-10 with 12.
template <typename T>
constexpr int WINDOW_POINTS = sizeof(T) == 4 ? 8 : 12;
constexpr double WINDOW_EXPONENT = 2.4;  // b of the window, for each point

// (cosh(b sqrt(1 - z^2)) - 1) / cosh(b), where the window ends at z = -1 and 1, and the derivative
// by z. Unlike that of exp(b (sqrt(1 - z^2) - 1)), it is finite at the ends.
// Source: Potts and Tasche, Adv. Comput. Math. 47, 53 (2021).
template <typename V>
struct Window {
    V value, slope;
};
template <typename N, typename V>
MDCG_HD Window<V> window(N exponent, V z) {
    const V zero{}, one = zero + N(1), least = zero + N(1e-10);  // smaller ones lose digits
    const V rest = one - z * z, root = square_root(rest > least ? rest : least);
    const V t = exponent * root, small = exponential(-t), scale = exponential(t - exponent);
    return {scale * (one - small) * (one - small),
            -exponent * z / root * scale * (one - small * small)};
}

// The point of a mesh of `count` points below a fraction of the cell, which is a fraction of 2^64;
// `rest` becomes its distance to that point, a fraction of 2^64, too.
MDCG_HD int mesh_point(unsigned long long fraction, int count, unsigned long long& rest) {
    const unsigned long long points = (unsigned long long)count;
    rest = fraction * points;
    return int(((fraction >> 32) * points + ((fraction & 0xffffffffu) * points >> 32)) >> 32);
}

// Along each direction, charges are on points, and their transforms are modes: the cosine and the
// sine of n = 0, 1, .. The numbers of both are multiples of MESH_STEP, filled up with zeros.
constexpr int MESH_STEP = 8;
constexpr int MESH_ATOMS = 32, MESH_THREADS = 256;  // of a block that spreads or gathers
// Rows and columns of a block of mesh_product, and its threads.
constexpr int PRODUCT_ROWS = 128, PRODUCT_COLUMNS = 32, PRODUCT_THREADS = 128;

template <typename T>
struct MeshArguments {
    EwaldArguments<T> sum;
    int points[3], modes[3];
    Long* charges;  // [points 1][points 2][points 3] in CHARGE_UNITS
    T* potentials;  // [points 1][points 2][points 3] half of dE/dq
    T* amplitudes;  // [modes 1][modes 2][modes 3] of charges, and factors of potentials
};
static_assert(sizeof(MeshArguments<float>) == 360 && sizeof(MeshArguments<double>) == 360);

// out[row][column] = sum over k of in[k][row] table[k][column]: a transform along the first
// direction, which becomes the last.
template <typename T>
struct MeshProduct {
    const Long* charges;  // [depth][rows] in CHARGE_UNITS, or null
    const T* in;          // [depth][rows], if there are no `charges`
    const T* table;       // [depth][columns]
    T* out;               // [rows][columns]
    Long rows;
    int depth, columns;
};
static_assert(sizeof(MeshProduct<float>) == 48 && sizeof(MeshProduct<double>) == 48);

}  // namespace mdcg
