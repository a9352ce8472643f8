// CUDA C++ for a host compiler, as much of it as the kernels use: included before every emulated
// program. ptx.hpp has what inline PTX becomes.
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

#ifdef EMULATED_HIP
#define __HIP__ 1
#else
#define __CUDACC__ 1
#define __CUDA_ARCH__ 900
#endif

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

inline unsigned lane() { return cuda().current->index.x % 32; }

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

// ---- declarations ------------------------------------------------------------------------------

#define __global__
#define __device__
#define __grid_constant__
#define __shared__ static __attribute__((section("emulated_static")))
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __builtin_assume(condition) ((void)0)

#define threadIdx (emulation::cuda().current->index)
#define blockIdx (emulation::cuda().block)
#define blockDim (emulation::cuda().block_dim)
#define gridDim (emulation::cuda().grid_dim)

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// ---- threads that meet -------------------------------------------------------------------------

// Always inlined: the barrier knows where it is called.
__attribute__((always_inline)) inline void __syncthreads() { emulation::cuda().barrier(); }
inline void __syncwarp(unsigned mask = ~0u) {
    emulation::Exchanged<int>(mask, emulation::kSync, 0);
}

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

template <class V>
unsigned __match_any_sync(unsigned mask, V value) {
    const emulation::Exchanged<V> all(mask, emulation::kBallot, value);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i)
        if ((all.lanes >> i & 1) && all.of(i) == value) bits |= 1u << i;
    return bits;
}
inline unsigned __ballot_sync(unsigned mask, int value) {
    const emulation::Exchanged<int> all(mask, emulation::kBallot, value != 0);
    unsigned bits = 0;
    for (unsigned i = 0; i < 32; ++i)
        if (all.lanes >> i & 1) bits |= unsigned(all.of(i)) << i;
    return bits;
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
template <class V>
V __reduce_min_sync(unsigned mask, V value) {
    const emulation::Exchanged<V> all(mask, emulation::kBallot, value);
    for (unsigned i = 0; i < 32; ++i)
        if (all.lanes >> i & 1) value = all.of(i) < value ? all.of(i) : value;
    return value;
}

// ---- memory ------------------------------------------------------------------------------------

template <class V>
V __ldg(const V* p) {
    return *emulation::aligned(p);
}
template <class V>
V __ldcs(const V* p) {
    return *emulation::aligned(p);
}
template <class V>
void __stcs(V* p, std::common_type_t<V> value) {
    *const_cast<V*>(emulation::aligned(p)) = value;
}
// One thread runs at a time.
template <class V>
V atomicAdd(V* p, std::common_type_t<V> b) {
    const V a = *emulation::aligned(p);
    *p = V(a + b);
    return a;
}
template <class V>
V atomicMax(V* p, std::common_type_t<V> b) {
    const V a = *emulation::aligned(p);
    *p = a > b ? a : b;
    return a;
}
inline size_t __cvta_generic_to_shared(const void* p) { return emulation::shared_address(p); }

// ---- arithmetic that a host's headers lack; approximate functions are exact here ---------------

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}
inline float rsqrtf(float x) { return float(1 / sqrt(double(x))); }
inline void sincospi(double x, double* s, double* c) {
    *s = sin(3.141592653589793238 * x);
    *c = cos(3.141592653589793238 * x);
}
inline void sincospif(float x, float* s, float* c) {
    *s = float(sin(3.141592653589793238 * double(x)));
    *c = float(cos(3.141592653589793238 * double(x)));
}
inline float __fdividef(float a, float b) { return a / b; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

namespace emulation {
template <class To, class From>
To bits(From value) {
    To result;
    memcpy(&result, &value, sizeof result);
    return result;
}
}  // namespace emulation
inline unsigned __float_as_uint(float x) { return emulation::bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulation::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulation::bits<float>(x); }
inline int __double2loint(double x) { return int(emulation::bits<long long>(x)); }
inline int __double2hiint(double x) { return int(emulation::bits<long long>(x) >> 32); }

#include "ptx.hpp"
