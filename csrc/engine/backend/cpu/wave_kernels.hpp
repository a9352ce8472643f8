// Sums over plane waves for a tile of atoms, and a particle mesh, for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/ewald.hpp"

namespace mdcg {

constexpr int WAVE_TILE = 32;  // atoms of a tile

// Cosines and sines of 2 pi n s of a tile, for each direction and n = 0, 1, ...
struct WaveTile {
    const double *cosine[3], *sine[3];  // [n][WAVE_TILE]
};

// The window of an atom in each direction: values, and derivatives by the position, in steps of the
// mesh. Rows are padded with zeros.
constexpr int WINDOW_WIDTH = 16;
struct MeshWindow {
    alignas(64) double values[3][WINDOW_WIDTH];
    alignas(64) double slopes[3][WINDOW_WIDTH];
};

// Rows of a block of WaveKernels::mesh_product.
constexpr int MESH_ROWS = 16;

struct WaveKernels {
    // Writes cosines and sines [count][WAVE_TILE] of n times `phases` [WAVE_TILE], which are
    // fractions of 2^64.
    void (*wave_powers)(const std::uint64_t* phases, int count, double* cosine, double* sine);
    // Adds to sums [pair][4], in CHARGE_UNITS. With p = charge exp(2 pi i (n1 s1 + n2 s2)), c and s
    // of m s3, these are the sums over the tile of re(p) c, im(p) s, re(p) s and im(p) c.
    void (*wave_sums)(const WaveTile& tile, const double* charges, const WaveColumn* columns,
                      std::int64_t num_columns, std::int64_t* sums);
    // Sums t = exp(2 pi i (n1 s1 + n2 s2 + n3 s3)) f over waves with factors f. Of a pair,
    // `factors` [pair][4] has the sum of both f and f(m) - f(-m), as real and imaginary parts.
    // Writes the sums of re(t) to `real` [WAVE_TILE], and of n im(t) to `slopes` [3][WAVE_TILE].
    void (*wave_fields)(const WaveTile& tile, const WaveColumn* columns, std::int64_t num_columns,
                        const double* factors, double* real, double* slopes);
    // The same, and the sums of n n' re(t) to `curvatures` [6][WAVE_TILE] as xx yy zz xy xz yz.
    void (*wave_curvatures)(const WaveTile& tile, const WaveColumn* columns,
                            std::int64_t num_columns, const double* factors, double* real,
                            double* slopes, double* curvatures);

    // Finds the window of `points` points for an atom that is rests [3] steps behind a point.
    void (*mesh_window)(int points, const double* rests, MeshWindow& window);
    // Adds charge * values[1] * values[2] to rows of the mesh, at `row(k)` for k < points.
    void (*mesh_spread)(int points, double charge, const MeshWindow& window, double* const* rows);
    // Sums what `rows` [points][points] have in the window: sums[0], and derivatives sums[1..3].
    void (*mesh_gather)(int points, const MeshWindow& window, const double* const* rows,
                        double* sums);
    // out[row][column] = sum over k of in[k][row] table[k][column] for MESH_ROWS rows, where rows
    // of `in` are `stride` items apart. `packed` has room for [depth][MESH_ROWS].
    void (*mesh_product)(std::int64_t depth, std::int64_t columns, const double* in,
                         std::int64_t stride, const double* table, double* packed, double* out);
};

// The kernels compiled for x86-64-v<level>; simd() chooses the level.
template <int level>
WaveKernels wave_kernels();

}  // namespace mdcg
