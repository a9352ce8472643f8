// L_MAX is defined before: -1 where only lengths matter.
#pragma once
#include "kernels/common.cuh"
#include "kernels/spherical_harmonics.cuh"

constexpr int WIDTH = (L_MAX + 1) * (L_MAX + 1);

// Harmonics of a unit vector; zeros if the vector is zero.
INLINE void harmonics_of(const T* factors, const T* u, T* row) {
    const T x = u[0], y = u[1], z = u[2];
    const bool dead = x == T(0) && y == T(0) && z == T(0);
    scaled_harmonics(factors, u, dead ? T(0) : T(1), row);
}
