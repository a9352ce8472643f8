// CUDA's spellings for AMD GPUs: this file stands before every program that hiprtc compiles.
//
// Kernels are written for warps of 32 lanes, and a wavefront has 64: its halves are two
// neighbouring warps of a block. Lanes of a half exchange values with each other only, so the
// halves may diverge, but both must meet at the same barriers, because the whole wavefront arrives
// at a barrier at once. Programs whose warps run different code around barriers therefore define
// MDCG_WAVEFRONT_PER_WARP: a warp is the first half of a wavefront, and the other lanes end at
// once. Such a block is launched with twice as many threads. NOTES: no tensor cores, and copies to
// shared memory that are asynchronous with CUDA are done when they return.
#pragma once

#define __grid_constant__
#undef __launch_bounds__
#undef __syncwarp

#ifdef MDCG_WAVEFRONT_PER_WARP
#define MDCG_SPREAD 2
#define END_IDLE_LANES() \
    if (__builtin_amdgcn_workitem_id_x() % 64 >= 32) return
struct WarpThread {
    unsigned x;
};
#undef threadIdx
#undef blockDim
// The compiler knows that all lanes have the same warp.
#define threadIdx                                                                            \
    (WarpThread{__builtin_amdgcn_readfirstlane(__builtin_amdgcn_workitem_id_x() / 64) * 32 + \
                __builtin_amdgcn_workitem_id_x() % 32})
#define blockDim (WarpThread{unsigned(__builtin_amdgcn_workgroup_size_x()) / 2})
#else
#define MDCG_SPREAD 1
#endif

// CUDA's second number, blocks for each multiprocessor, has no counterpart. NOTES: LLVM 21 ends the
// process over some kernels with accumulation registers (its pass "Rewrite AGPR-Copy-MFMA"), as the
// forward pass of a convolution with features of degree 3; LLVM 20 was not tried. Two wavefronts
// for each SIMD unit leave a lane 256 of its 512 registers, none of which are such.
#define MDCG_THREADS(THREADS) \
    __attribute__((amdgpu_flat_work_group_size(1, (THREADS) * MDCG_SPREAD)))
#if __clang_major__ >= 20 && (defined(__gfx90a__) || defined(__gfx942__))
#define MDCG_THREADS_AND_BLOCKS(THREADS, BLOCKS) \
    MDCG_THREADS(THREADS) __attribute__((amdgpu_waves_per_eu(2)))
#else
#define MDCG_THREADS_AND_BLOCKS(THREADS, BLOCKS) MDCG_THREADS(THREADS)
#endif
#define MDCG_THIRD(A, B, C, ...) C
#define __launch_bounds__(...) \
    MDCG_THIRD(__VA_ARGS__, MDCG_THREADS_AND_BLOCKS, MDCG_THREADS, )(__VA_ARGS__)

namespace hip {

// First of the 32 lanes of this thread's half.
__device__ __forceinline__ unsigned first_lane() { return __lane_id() & 32u; }

// Lanes of a wavefront run in step; the fence keeps the order of accesses to memory.
__device__ __forceinline__ void meet() {
    __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
    __builtin_amdgcn_wave_barrier();
}

__device__ __forceinline__ unsigned ballot(bool value) {
    return unsigned(__ballot(value) >> first_lane());
}

template <typename V>
__device__ __forceinline__ V least(V value) {
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) {
        const V other = __shfl_xor(value, bit, 32);
        value = other < value ? other : value;
    }
    return value;
}

template <typename V>
__device__ __forceinline__ unsigned equal(V value) {
    unsigned found = 0;
#pragma unroll
    for (int lane = 0; lane < 32; ++lane)
        found |= unsigned(__shfl(value, lane, 32) == value) << lane;
    return found;
}

template <typename V>
__device__ __forceinline__ V from_lane(V value, int lane) {
    return __shfl(value, lane, 32);
}
#ifdef MDCG_WAVEFRONT_PER_WARP
__device__ __forceinline__ int from_lane(int value, int lane) {
    if (__builtin_constant_p(lane) && lane == 0) return __builtin_amdgcn_readfirstlane(value);
    return __shfl(value, lane, 32);
}
#endif

// Copies `bytes` bytes, and fills up to 16 with zeros.
template <typename T>
__device__ __forceinline__ void copy(T* to, const T* from, int bytes) {
    constexpr int COUNT = 16 / sizeof(T);
    struct alignas(16) Items {
        T v[COUNT];
    } items = {};
    if (bytes == 16) {
        items = *(const Items*)from;
    } else {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            if (i * int(sizeof(T)) < bytes) items.v[i] = from[i];
    }
    *(Items*)to = items;
}

}  // namespace hip

// Masks have the lanes that run: what is not in a mask is not looked at.
#define __syncwarp(...) hip::meet()
#define __shfl_sync(mask, value, lane) hip::from_lane(value, lane)
#define __shfl_xor_sync(mask, value, bits) __shfl_xor(value, bits, 32)
#define __shfl_up_sync(mask, value, step) __shfl_up(value, step, 32)
#define __shfl_down_sync(mask, value, step) __shfl_down(value, step, 32)
#define __ballot_sync(mask, value) hip::ballot(value)
#define __any_sync(mask, value) (hip::ballot(value) != 0)
#define __match_any_sync(mask, value) hip::equal(value)
#define __reduce_min_sync(mask, value) hip::least(value)

// Memory without hints for caches.
#define __ldg(address) (*(address))
#define __ldcs(address) (*(address))
#define __stcs(address, value) (*(address) = (value))
#define __fdividef(a, b) ((a) / (b))

// Functions without a mark are for devices, too, as with NVRTC's option -default-device.
#pragma clang force_cuda_host_device begin
