// Every program begins with this file; T is float or double.
#pragma once
#include "kernels/types.hpp"

using namespace mdcg;

#define INLINE __device__ __forceinline__

// Length of an edge that is not shorter than r_max, Å: longer than any cutoff.
constexpr double DEAD = 1e3;

typedef PackOf<T> Pack;
constexpr int LANE_ITEMS = Pack::ITEMS;

// Number of this thread in the grid, and of all threads.
INLINE Long thread_number() { return Long(blockIdx.x) * blockDim.x + threadIdx.x; }
INLINE Long thread_count() { return Long(gridDim.x) * blockDim.x; }
