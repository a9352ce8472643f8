// Atoms in the cell where their list was made.
#pragma once
#include "kernels/common.cuh"

// Coordinate k of an atom whose given coordinate is `along` and whose given position is `wraps`
// cell vectors away.
INLINE double unwrapped(double along, const int* wraps, const double* cell, int k) {
    const double a = wraps[0], b = wraps[1], c = wraps[2];
    return along - (a * cell[k] + b * cell[3 + k] + c * cell[6 + k]);
}
