// Vectors in memory, copies to shared memory, barriers. MDCG_VECTOR_ATOMICS is 0 or 1.
#pragma once
#include "kernels/vectors.cuh"

// ---- whole vectors, aligned

MDCG_INLINE const float* word(const float* p, Vec<1>) { return p; }
MDCG_INLINE const float2* word(const float* p, Vec<2>) { return (const float2*)p; }
MDCG_INLINE const float4* word(const float* p, Vec<4>) { return (const float4*)p; }
MDCG_INLINE const double* word(const double* p, Vec<1>) { return p; }
MDCG_INLINE const double2* word(const double* p, Vec<2>) { return (const double2*)p; }
MDCG_INLINE Vec<1> vec(float t) { return {{T(t)}}; }
MDCG_INLINE Vec<2> vec(float2 t) { return {{T(t.x), T(t.y)}}; }
MDCG_INLINE Vec<4> vec(float4 t) { return {{T(t.x), T(t.y), T(t.z), T(t.w)}}; }
MDCG_INLINE Vec<1> vec(double t) { return {{T(t)}}; }
MDCG_INLINE Vec<2> vec(double2 t) { return {{T(t.x), T(t.y)}}; }

template <class F, int N>
MDCG_INLINE Vec<N> load(const F* p, Vec<N> n) {
    return vec(__ldg(word(p, n)));
}
// Loads what is read only once, so that weights do not push node rows out of the caches.
template <class F, int N>
MDCG_INLINE Vec<N> load_stream(const F* p, Vec<N> n) {
    return vec(__ldcs(word(p, n)));
}
MDCG_INLINE void store_stream(float* p, Vec<1> a) { __stcs(p, float(a.v[0])); }
MDCG_INLINE void store_stream(float* p, Vec<2> a) {
    __stcs((float2*)p, make_float2(a.v[0], a.v[1]));
}
MDCG_INLINE void store_stream(float* p, Vec<4> a) {
    __stcs((float4*)p, make_float4(a.v[0], a.v[1], a.v[2], a.v[3]));
}
MDCG_INLINE void store_stream(double* p, Vec<1> a) { __stcs(p, double(a.v[0])); }
MDCG_INLINE void store_stream(double* p, Vec<2> a) {
    __stcs((double2*)p, make_double2(a.v[0], a.v[1]));
}

// ---- adding to memory

#ifdef __HIP__
MDCG_INLINE void add(float* p, float a) { atomicAdd(p, a); }
MDCG_INLINE void add(double* p, double a) { atomicAdd(p, a); }
#else
MDCG_INLINE void add(float* p, float a) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(p), "f"(a) : "memory");
}
MDCG_INLINE void add(double* p, double a) {
    asm volatile("red.global.add.f64 [%0], %1;" ::"l"(p), "d"(a) : "memory");
}
#endif
template <int N>
MDCG_INLINE void add(T* p, Vec<N> a) {
#pragma unroll
    MDCG_EACH add(p + k, a.v[k]);
}
#if MDCG_VECTOR_ATOMICS
MDCG_INLINE void add(float* p, Vec<2> a) {
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(a.v[0]), "f"(a.v[1])
                 : "memory");
}
MDCG_INLINE void add(float* p, Vec<4> a) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(a.v[0]), "f"(a.v[1]),
                 "f"(a.v[2]), "f"(a.v[3])
                 : "memory");
}
#endif

// ---- strided channels, some of them past the end

template <int N, int STRIDE>
MDCG_INLINE Vec<N> load_some(const T* p, int count) {
    Vec<N> a;
#pragma unroll
    MDCG_EACH a.v[k] = k < count ? __ldg(p + k * STRIDE) : T(0);
    return a;
}
template <int N, int STRIDE>
MDCG_INLINE void store_some(T* p, Vec<N> a, int count) {
#pragma unroll
    MDCG_EACH if (k < count) p[k * STRIDE] = a.v[k];
}
template <int N, int STRIDE>
MDCG_INLINE void add_some(T* p, Vec<N> a, int count) {
#pragma unroll
    MDCG_EACH if (k < count) add(p + k * STRIDE, a.v[k]);
}

// Waits for all warps of the block.
template <int THREADS>
MDCG_INLINE void sync_warps() {
    if constexpr (THREADS == 32) {
        __syncwarp();
    } else {
        __syncthreads();
    }
}

// ---- asynchronous copies to shared memory

#ifdef __HIP__
MDCG_INLINE void copy_some(T* to, const T* from, int bytes) { hip::copy(to, from, bytes); }
MDCG_INLINE void copy_once(T* to, const T* from, int bytes) { hip::copy(to, from, bytes); }
MDCG_INLINE void copy_commit() {}
#else
MDCG_INLINE unsigned shared_address(const void* p) { return unsigned(__cvta_generic_to_shared(p)); }
// Copies `bytes` bytes, and fills up to 16 with zeros.
MDCG_INLINE void copy_some(T* to, const T* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
// Copies what is read only once, without the first-level cache. NOTES: no L2 policy, because ptxas
// of CUDA 13.0 makes illegal instructions of copies that have one.
MDCG_INLINE void copy_once(T* to, const T* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes)
                 : "memory");
}
MDCG_INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
#endif
template <int N, int STRIDE>
MDCG_INLINE Vec<N> take_some(const T* p) {
    Vec<N> a;
#pragma unroll
    MDCG_EACH a.v[k] = p[k * STRIDE];
    return a;
}
// Waits until at most N groups of copies are under way, and for the other lanes.
template <int N>
MDCG_INLINE void copy_wait() {
#ifndef __HIP__
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
    __syncwarp();
}

// ---- kernels of one pass that overlap: none of them reads what another writes

#ifdef __HIP__
MDCG_INLINE void let_next_start() {}
MDCG_INLINE void end_after_previous() {}
#else
// Lets the next kernel of the stream start while the last blocks of this one run.
MDCG_INLINE void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
// A kernel that started early must end after the kernel before it, so that waiting for it means
// waiting for both.
MDCG_INLINE void end_after_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#endif
