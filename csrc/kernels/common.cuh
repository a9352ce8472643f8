// Every program begins with this file; T is float or double.
#pragma once
#include "kernels/types.hpp"

using namespace mdcg;

#define INLINE __device__ __forceinline__

// Length that stands for all edges not shorter than r_max, Å: longer than any cutoff.
constexpr double DEAD = 1e3;

typedef PackOf<T> Pack;
constexpr int LANE_ITEMS = Pack::ITEMS;

template <int COUNT>
INLINE void load_packs(const Pack* from, T (&to)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) to[i] = from[i / LANE_ITEMS].v[i % LANE_ITEMS];
}

// Number of this thread in the grid, and of all threads.
INLINE Long thread_number() { return Long(blockIdx.x) * blockDim.x + threadIdx.x; }
INLINE Long thread_count() { return Long(gridDim.x) * blockDim.x; }

// Number of this thread's warp in the block. The compiler then knows that all lanes have the same
// one; otherwise it expects loops over parts of a warp to diverge at every exchange of lanes.
INLINE int warp_of_block() { return __shfl_sync(0xffffffffu, int(threadIdx.x) / 32, 0); }

// Returns the inclusive prefix sum over the lanes of a warp.
INLINE int lane_prefix_sum(int sum) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    return sum;
}
