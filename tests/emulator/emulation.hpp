// CUDA C++ for a host compiler: included before every emulated program. cuda_math.hpp has the
// arithmetic, and ptx.hpp the functions that replace inline PTX.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "runtime.hpp"

#define MDCG_EMULATED 1
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ 900

// Every library of kernels has these variables. The driver sets the pointer.
extern "C" {
__attribute__((visibility("default"))) emulation::Runtime* emulated_runtime;
__attribute__((
    visibility("default"),
    aligned(1024))) char emulated_shared[emulation::kSharedBytes + emulation::kSharedGuard];
// The linker defines these at the section of static shared memory; null if there is none.
extern char __start_emulated_static[] __attribute__((weak, visibility("hidden")));
extern char __stop_emulated_static[] __attribute__((weak, visibility("hidden")));
__attribute__((visibility("default"))) char* emulated_static_shared(size_t* bytes) {
    *bytes = static_cast<size_t>(__stop_emulated_static - __start_emulated_static);
    return __start_emulated_static;
}
}

namespace emulation {

inline Runtime& cuda() { return *emulated_runtime; }

// Calls a kernel with parameters of its types.
template <class... P>
struct Signature {
    static constexpr size_t sizes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    template <size_t... I>
    static void call(void (*kernel)(P...), void** parameters, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_reference_t<P>*>(parameters[I])...);
    }
    static void call(void (*kernel)(P...), void** parameters) {
        call(kernel, parameters, std::index_sequence_for<P...>());
    }
};
template <class... P>
Signature<P...> signature(void (*)(P...)) {
    return {};
}
template <auto KERNEL>
void call(void** parameters) {
    decltype(signature(KERNEL))::call(KERNEL, parameters);
}
template <auto KERNEL>
constexpr int num_parameters() {
    return int(sizeof(decltype(signature(KERNEL))::sizes) / sizeof(size_t)) - 1;
}

inline unsigned lane() { return cuda().current->number % 32; }

// Gives a value to the lanes of a mask, and reads the value that another lane gave.
template <class V>
struct Exchanged {
    static constexpr int kCount = (sizeof(V) + 7) / 8;
    static_assert(kCount <= kWords, "too much for one exchange");
    unsigned lanes;
    const unsigned long long* values;
    Exchanged(unsigned mask, Kind kind, const V& value) {
        unsigned long long words[kCount] = {};
        memcpy(words, &value, sizeof(V));
        values = cuda().exchange(mask, kind, words, kCount, &lanes);
    }
    V of(unsigned lane) const {
        V value;
        memcpy(&value, values + lane * kCount, sizeof(V));
        return value;
    }
};

template <class V>
V shuffle(unsigned mask, V value, int width, int (*source)(int, int, int), int by) {
    static_assert(sizeof(V) == 4 || sizeof(V) == 8, "shuffled values have 32 or 64 bits");
    const int own = int(lane()), first = own & ~(width - 1);
    const Exchanged<V> all(mask, kShuffle, value);
    const int from = source(own - first, by, width);
    return all.of(unsigned(from < 0 ? own : first + from));
}

template <class V>
const V* aligned(const V* p) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(V) != 0) cuda().fail("misaligned access");
    return p;
}

// Addresses of shared memory have 32 bits in PTX: distances from the dynamic part.
inline unsigned shared_address(const void* p) {
    return unsigned(static_cast<const char*>(p) - emulated_shared);
}
inline char* shared_pointer(unsigned address) { return emulated_shared + int(address); }

}  // namespace emulation

// ---- declarations ----

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ static __attribute__((section("emulated_static")))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(condition) ((void)0)
#define __nanosleep(time) (emulation::cuda().yield())

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
#define threadIdx (emulation::cuda().current->index)
#define blockIdx (emulation::cuda().block)
#define blockDim (emulation::cuda().block_dim)
#define gridDim (emulation::cuda().grid_dim)
constexpr int warpSize = 32;

#define EMULATION_VECTORS(T, NAME, A2, A4, A8)                         \
    struct NAME##1 { T x; };                                           \
    struct __align__(A2) NAME##2 { T x, y; };                          \
    struct NAME##3 { T x, y, z; };                                     \
    struct __align__(A4) NAME##4 { T x, y, z, w; };                    \
    inline NAME##1 make_##NAME##1(T x) { return {x}; }                 \
    inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
    inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
    inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }
EMULATION_VECTORS(float, float, 8, 16, 16)
EMULATION_VECTORS(double, double, 16, 16, 16)
EMULATION_VECTORS(int, int, 8, 16, 16)
EMULATION_VECTORS(unsigned, uint, 8, 16, 16)
EMULATION_VECTORS(long long, longlong, 16, 16, 16)
EMULATION_VECTORS(unsigned long long, ulonglong, 16, 16, 16)
EMULATION_VECTORS(short, short, 4, 8, 8)
EMULATION_VECTORS(unsigned short, ushort, 4, 8, 8)
EMULATION_VECTORS(signed char, char, 2, 4, 4)
EMULATION_VECTORS(unsigned char, uchar, 2, 4, 4)
#undef EMULATION_VECTORS

// ---- barriers and exchanges of threads ----

inline void __syncthreads() { emulation::cuda().barrier(0, 0, true); }
inline void __syncwarp(unsigned mask = ~0u) {
    emulation::Exchanged<int>(mask, emulation::kSync, 0);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class V>
V __shfl_sync(unsigned mask, V value, int from, int width = 32) {
    return emulation::shuffle(
        mask, value, width, [](int, int by, int w) { return by & (w - 1); }, from);
}
template <class V>
V __shfl_xor_sync(unsigned mask, V value, int by, int width = 32) {
    return emulation::shuffle(
        mask, value, width, [](int i, int b, int w) { return (i ^ b) < w ? i ^ b : -1; }, by);
}
template <class V>
V __shfl_down_sync(unsigned mask, V value, int by, int width = 32) {
    return emulation::shuffle(
        mask, value, width, [](int i, int b, int w) { return i + b < w ? i + b : -1; }, by);
}
template <class V>
V __shfl_up_sync(unsigned mask, V value, int by, int width = 32) {
    return emulation::shuffle(mask, value, width, [](int i, int b, int) { return i - b; }, by);
}

inline unsigned __ballot_sync(unsigned mask, int value) {
    const emulation::Exchanged<int> all(mask, emulation::kBallot, value != 0);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (all.lanes >> i & 1) bits |= unsigned(all.of(i)) << i;
    return bits;
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, !value) == 0; }
// The emulator does not know which lanes are converged, so only the lane itself is reported, which
// CUDA allows.
inline unsigned __activemask() { return 1u << emulation::lane(); }
template <class V>
unsigned __match_any_sync(unsigned mask, V value) {
    const emulation::Exchanged<V> all(mask, emulation::kBallot, value);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i)
        if ((all.lanes >> i & 1) && all.of(i) == value) bits |= 1u << i;
    return bits;
}
#define EMULATION_REDUCE(NAME, RESULT)                                      \
    template <class V>                                                      \
    V __reduce_##NAME##_sync(unsigned mask, V value) {                      \
        const emulation::Exchanged<V> all(mask, emulation::kBallot, value); \
        V a = value;                                                        \
        for (unsigned i = 0; i < 32; ++i)                                   \
            if ((all.lanes >> i & 1) && i != emulation::lane()) {           \
                const V b = all.of(i);                                      \
                a = RESULT;                                                 \
            }                                                               \
        return a;                                                           \
    }
EMULATION_REDUCE(add, a + b)
EMULATION_REDUCE(min, a < b ? a : b)
EMULATION_REDUCE(max, a > b ? a : b)
EMULATION_REDUCE(and, a& b)
EMULATION_REDUCE(or, a | b)
#undef EMULATION_REDUCE

// ---- memory ----

#define EMULATION_LOAD(NAME)           \
    template <class V>                 \
    V NAME(const V* p) {               \
        return *emulation::aligned(p); \
    }
EMULATION_LOAD(__ldg)
EMULATION_LOAD(__ldcs)
EMULATION_LOAD(__ldcg)
EMULATION_LOAD(__ldca)
EMULATION_LOAD(__ldlu)
EMULATION_LOAD(__ldcv)
#undef EMULATION_LOAD
#define EMULATION_STORE(NAME)                           \
    template <class V>                                  \
    void NAME(V* p, std::common_type_t<V> value) {      \
        *const_cast<V*>(emulation::aligned(p)) = value; \
    }
EMULATION_STORE(__stcs)
EMULATION_STORE(__stcg)
EMULATION_STORE(__stwb)
EMULATION_STORE(__stwt)
#undef EMULATION_STORE

// Atomic operations need no locks, because one thread runs at a time.
#define EMULATION_ATOMIC(NAME, RESULT)              \
    template <class V>                              \
    V NAME(V* p, std::common_type_t<V> b) {         \
        const V a = *emulation::aligned(p);         \
        *p = RESULT;                                \
        return a;                                   \
    }                                               \
    template <class V>                              \
    V NAME##_block(V* p, std::common_type_t<V> b) { \
        return NAME(p, b);                          \
    }
EMULATION_ATOMIC(atomicAdd, V(a + b))
EMULATION_ATOMIC(atomicSub, V(a - b))
EMULATION_ATOMIC(atomicMax, a > b ? a : b)
EMULATION_ATOMIC(atomicMin, a < b ? a : b)
EMULATION_ATOMIC(atomicExch, b)
EMULATION_ATOMIC(atomicAnd, V(a& b))
EMULATION_ATOMIC(atomicOr, V(a | b))
EMULATION_ATOMIC(atomicXor, V(a ^ b))
EMULATION_ATOMIC(atomicInc, a >= b ? V(0) : V(a + 1))
EMULATION_ATOMIC(atomicDec, a == 0 || a > b ? b : V(a - 1))
#undef EMULATION_ATOMIC
template <class V>
V atomicCAS(V* p, std::common_type_t<V> expected, std::common_type_t<V> value) {
    const V old = *emulation::aligned(p);
    if (memcmp(&old, &expected, sizeof old) == 0) *p = value;
    return old;
}
inline float2 atomicAdd(float2* p, float2 b) {
    const float2 a = *emulation::aligned(p);
    *p = {a.x + b.x, a.y + b.y};
    return a;
}
inline float4 atomicAdd(float4* p, float4 b) {
    const float4 a = *emulation::aligned(p);
    *p = {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    return a;
}

inline size_t __cvta_generic_to_shared(const void* p) { return emulation::shared_address(p); }
inline void* __cvta_shared_to_generic(size_t p) { return emulation::shared_pointer(unsigned(p)); }
inline size_t __cvta_generic_to_global(const void* p) { return size_t(p); }
inline unsigned __isShared(const void* p) {
    const char* const c = static_cast<const char*>(p);
    return (c >= emulated_shared && c < emulated_shared + sizeof emulated_shared) ||
           (c >= __start_emulated_static && c < __stop_emulated_static);
}
inline unsigned __isGlobal(const void* p) { return !__isShared(p); }
inline void __pipeline_memcpy_async(void* to, const void* from, size_t size, size_t zeros = 0) {
    emulation::cuda().copy(to, from, int(size), int(size - zeros));
}
inline void __pipeline_commit() { emulation::cuda().commit(); }
inline void __pipeline_wait_prior(size_t groups) { emulation::cuda().wait_copies(int(groups)); }

#include "cuda_math.hpp"
#include "ptx.hpp"
