#include "kernels/harmonic_functions.cuh"
#include "kernels/harmonics.hpp"

// Blocks of THREADS edges pass rows of harmonics through shared memory, so that neighbouring lanes
// access neighbouring items.
constexpr int ROW = WIDTH | 1;

extern "C" __global__ void __launch_bounds__(THREADS) harmonics(const HarmonicsArguments<T> p) {
    __shared__ T rows[THREADS * ROW];
    const Long begin = Long(blockIdx.x) * THREADS;
    const int count = int(p.num_edges - begin < THREADS ? p.num_edges - begin : THREADS);
    if (int(threadIdx.x) < count) {
        const T* const u = p.unit + 3 * (p.first + begin + threadIdx.x);
        harmonics_of(p.factors, u, rows + threadIdx.x * ROW);
    }
    __syncthreads();
    T* const out = p.harmonics + begin * WIDTH;
    for (int i = threadIdx.x; i < count * WIDTH; i += THREADS)
        out[i] = rows[i / WIDTH * ROW + i % WIDTH];
}

// Adds the gradients of edge vectors, from the gradients of harmonics and lengths.
extern "C" __global__ void __launch_bounds__(THREADS) to_vectors(const HarmonicsArguments<T> p) {
    const Long begin = Long(blockIdx.x) * THREADS;
    const int count = int(p.num_edges - begin < THREADS ? p.num_edges - begin : THREADS);
    __shared__ T rows[THREADS * ROW];
    const T* const given = p.d_harmonics + begin * WIDTH;
    for (int i = threadIdx.x; i < count * WIDTH; i += THREADS)
        rows[i / WIDTH * ROW + i % WIDTH] = given[i];
    __syncthreads();
    if (int(threadIdx.x) >= count) return;
    const Long edge = p.first + begin + threadIdx.x;
    const T* const u = p.unit + 3 * edge;
    if (u[0] == T(0) && u[1] == T(0) && u[2] == T(0)) return;
    double d[3];
    const T* const own = rows + threadIdx.x * ROW;
    harmonics_gradient(L_MAX, p.factors, u, [&](int i) { return own[i]; }, d);
    const double inverse = 1.0 / p.length[edge];
    const double along =
        p.d_length[begin + threadIdx.x] - (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
    T* const to = p.edge_gradient + 3 * edge;
#pragma unroll
    for (int k = 0; k < 3; ++k) to[k] += T(p.sign * (along * u[k] + d[k] * inverse));
}
