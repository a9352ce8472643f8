// HIP for a host compiler: included before every emulated program for AMD's GPUs, which begins with
// csrc/kernels/hip.cuh. Of what that file needs, this has the parts that CUDA has not.
//
// A wavefront has 64 lanes. The lanes of a half meet in its exchanges, those that run: where some
// wait at a barrier or have ended, the others go on without them. Bits of the other half in a
// ballot are random, because it may run or not.
#pragma once
#define EMULATED_HIP 1
#include "emulation.hpp"

inline unsigned __lane_id() { return emulation::cuda().current->index.x % 64; }

#define __builtin_amdgcn_workitem_id_x() (emulation::cuda().current->index.x)
#define __builtin_amdgcn_workgroup_size_x() (emulation::cuda().block_dim.x)
// The kernels give it values that are the same for all lanes.
#define __builtin_amdgcn_readfirstlane(value) (value)
#define __builtin_amdgcn_fence(...) ((void)0)
#define __builtin_amdgcn_wave_barrier() emulation::meet()
namespace emulation {
inline void meet() { Exchanged<int>(~0u, kSync, 0); }
}  // namespace emulation

template <class V>
V __shfl(V value, int from, int width) {
    return __shfl_sync(~0u, value, from, width);
}
template <class V>
V __shfl_xor(V value, int by, int width) {
    return __shfl_xor_sync(~0u, value, by, width);
}
template <class V>
V __shfl_up(V value, int by, int width) {
    return __shfl_up_sync(~0u, value, by, width);
}
template <class V>
V __shfl_down(V value, int by, int width) {
    return __shfl_down_sync(~0u, value, by, width);
}
inline unsigned long long __ballot(int value) {
    static unsigned others = 12345;
    others = others * 1664525u + 1013904223u;
    const unsigned long long own = __ballot_sync(~0u, value);
    return __lane_id() < 32 ? own | (unsigned long long)others << 32 : own << 32 | others;
}
