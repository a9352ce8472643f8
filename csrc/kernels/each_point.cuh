// Visits all atoms and images within a long cutoff of an atom. A block takes an atom, a warp a row
// of boxes, and the lanes of the warp neighbouring points.
#pragma once
#include "kernels/cutoff.cuh"
#include "kernels/points.hpp"

struct Vector {
    double x, y, z;
};

INLINE int box_of(const PointSet& s, int k, double at) {
    const double box = floor((at - s.origin[k]) * s.inverse_edge[k]);
    return int(fmin(fmax(box, 0.0), double(s.boxes[k] - 1)));
}

// Least distance of a position from a box along one direction.
INLINE double gap(const PointSet& s, int k, int box, double at) {
    const double low = s.origin[k] + box * s.edge[k];
    return fmax(0.0, fmax(low - at, at - low - s.edge[k]));
}

// Calls body(point, v, square) for the points of a slot within the cutoff of an atom; v points from
// the point to the atom. All threads of a block must call this: each thread finds the points of one
// row of boxes, then warps take these rows.
template <typename Body>
INLINE void each_point(const PointSet& s, int slot, const Vector& at, double cutoff,
                       const Body& body) {
    __shared__ int begins[POINT_THREADS], ends[POINT_THREADS];
    const double reach = cutoff + s.slack, limit = cutoff * cutoff;
    const int y0 = box_of(s, 1, at.y - reach), wide = box_of(s, 1, at.y + reach) - y0 + 1;
    const int z0 = box_of(s, 2, at.z - reach), high = box_of(s, 2, at.z + reach) - z0 + 1;
    const int rows = wide * high, warp = warp_of_block(), lane = threadIdx.x % 32;
    for (int first = 0; first < rows; first += POINT_THREADS) {
        const int number = first + threadIdx.x;
        const int z = z0 + number / wide, y = y0 + number % wide;
        int begin = 0, end = 0;
        if (number < rows) {
            const double dy = gap(s, 1, y, at.y), dz = gap(s, 2, z, at.z);
            const double rest = reach * reach - dy * dy - dz * dz;
            if (rest >= 0) {
                const double half = sqrt(rest);
                const int* const row =
                    s.first + ((Long(slot) * s.boxes[2] + z) * s.boxes[1] + y) * s.boxes[0];
                begin = row[box_of(s, 0, at.x - half)];
                end = row[box_of(s, 0, at.x + half) + 1];
            }
        }
        __syncthreads();
        begins[threadIdx.x] = begin;
        ends[threadIdx.x] = end;
        __syncthreads();
        const int many = min(rows - first, POINT_THREADS);
        for (int r = warp; r < many; r += POINT_WARPS) {
            int p = begins[r] + lane;
            const int last = ends[r];
            Vector next = p < last ? Vector{s.x[p], s.y[p], s.z[p]} : Vector{};
            for (; p < last; p += 32) {
                const Vector v = {at.x - next.x, at.y - next.y, at.z - next.z};
                const int q = p + 32 < last ? p + 32 : p;
                next = {s.x[q], s.y[q], s.z[q]};  // loaded while this point is computed
                const double square = v.x * v.x + v.y * v.y + v.z * v.z;
                if (square <= limit && square > 0) body(p, v, square);
            }
        }
    }
}

// Sums over all threads of a block, in a fixed order; every thread gets them.
template <int NUMBERS>
INLINE void block_sums(double (&values)[NUMBERS]) {
    __shared__ double parts[POINT_WARPS][NUMBERS];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
        const double total = warp_sum(values[i]);
        if (lane == 0) parts[warp][i] = total;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
        values[i] = parts[0][i];
        for (int w = 1; w < POINT_WARPS; ++w) values[i] += parts[w][i];
    }
}

INLINE Vector place_of(const PointSet& s, Long node) {
    const int p = s.own[node];
    return {s.x[p], s.y[p], s.z[p]};
}

// Force and virial of an atom from its pairs; slope is dE/dr / r.
template <typename N>
struct ForceSum {
    N v[9] = {};  // force; xx yy zz xy xz yz of the virial

    INLINE void add(N dx, N dy, N dz, N slope) {
        const N x = slope * dx, y = slope * dy, z = slope * dz;
        v[0] += x, v[1] += y, v[2] += z;
        v[3] += x * dx, v[4] += y * dy, v[5] += z * dz;
        v[6] += x * dy, v[7] += x * dz, v[8] += y * dz;
    }
};

// Adds the sums of all threads of the block to the rows of a node.
INLINE void store_force(ForceSum<double>& sum, double* forces, double* virials, Long node) {
    block_sums(sum.v);
    const int i = threadIdx.x;
#pragma unroll
    for (int k = 0; k < 9; ++k) {
        if (i != k) continue;
        if (k < 3)
            forces[3 * node + k] -= sum.v[k];
        else
            virials[6 * node + k - 3] -= 0.5 * sum.v[k];
    }
}
