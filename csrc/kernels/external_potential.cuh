// The potential of a uniform external field; see csrc/engine/ops/system/external_potential.hpp.
#include "kernels/external_potential.hpp"
#include "kernels/integer_sums.cuh"

// One block has all atoms: only open systems have a field, which sums over pairs keep small.
extern "C" __global__ void __launch_bounds__(EXTERNAL_THREADS)
    external_potential(const ExternalPotentialArguments<T> a) {
    __shared__ double parts[EXTERNAL_THREADS / 32];
    const auto potential = [&](Long atom) {
        const double* const r = a.positions + 3 * atom;
        return a.field[0] * r[0] + a.field[1] * r[1] + a.field[2] * r[2];
    };
    double sum = 0;
    for (Long atom = threadIdx.x; atom < a.num_atoms; atom += EXTERNAL_THREADS)
        sum += a.forces == nullptr ? potential(atom) : double(a.rows[atom * a.width]);
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    double mean = 0;
    for (int w = 0; w < EXTERNAL_THREADS / 32; ++w) mean += parts[w];
    mean /= double(a.num_atoms);
    for (Long atom = threadIdx.x; atom < a.num_atoms; atom += EXTERNAL_THREADS) {
        T* const row = a.rows + atom * a.width;
        if (a.forces == nullptr) {
            for (int i = 0; i < a.width; ++i) row[i] = 0;
            row[0] = T(potential(atom) - mean);
            row[1] = T(potential(atom));
            for (int d = 0; d < 3; ++d) row[a.vector + d * a.stride] = T(a.field[d]);
            continue;
        }
        const double slope = double(row[0]) - mean + double(row[1]);
        const double* const r = a.positions + 3 * atom;
        for (int d = 0; d < 3; ++d) {
            a.forces[3 * atom + d] -= slope * a.field[d];
            const int e = d / 2, f = 1 + (d + 1) / 2;  // xy, xz, yz
            a.virials[6 * atom + d] -= slope * r[d] * a.field[d];
            a.virials[6 * atom + 3 + d] -= 0.5 * slope * (r[e] * a.field[f] + r[f] * a.field[e]);
        }
    }
}
