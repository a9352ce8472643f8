// Sums over plane waves for a tile of atoms, for several instruction sets.
#pragma once

#include <cstdint>

#include "kernels/ewald.hpp"

namespace mdcg {

constexpr int WAVE_TILE = 32;  // atoms of a tile

// Cosines and sines of 2 pi n s of a tile, for each direction and n = 0, 1, ...
struct WaveTile {
    const double *cosine[3], *sine[3];  // [n][WAVE_TILE]
};

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
};

// The kernels compiled for x86-64-v<level>; simd() chooses the level.
template <int level>
WaveKernels wave_kernels();

}  // namespace mdcg
