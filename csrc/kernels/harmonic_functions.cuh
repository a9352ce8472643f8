// L_MAX is defined before: -1 where only lengths matter.
#pragma once
#include "kernels/common.cuh"
#include "kernels/spherical_harmonics.hpp"

constexpr int WIDTH = (L_MAX + 1) * (L_MAX + 1);

// Harmonics of a unit vector; zeros if the vector is zero.
INLINE void harmonics_of(const T* factors, const T* u, T* row) {
    const T unit[] = {u[0], u[1], u[2]};
    const bool dead = unit[0] == T(0) && unit[1] == T(0) && unit[2] == T(0);
    spherical_harmonics(L_MAX, factors, unit, dead ? T(0) : T(1),
                        [&](int i, T value) { row[i] = value; });
}
