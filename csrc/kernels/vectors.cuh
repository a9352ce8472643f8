// Values of neighbouring channels in a thread. T is float or double.
#pragma once

typedef long long Long;

// Consecutive channels of one lane.
template <int N>
struct alignas(N * sizeof(T)) Vec {
    T v[N];
};

// 16 bytes, the most that a thread loads at once.
constexpr int QUAD = 16 / sizeof(T);
struct alignas(16) Quad {
    T v[QUAD];
};

// Begins kernels of programs that AMD GPUs run with a wavefront for each warp, see hip.cuh.
#ifndef END_IDLE_LANES
#define END_IDLE_LANES()
#endif

#define MDCG_INLINE static __device__ __forceinline__
#define MDCG_MEMBER __device__ __forceinline__
#define MDCG_EACH for (int k = 0; k < N; ++k)

template <int N>
MDCG_INLINE Vec<N> operator+(Vec<N> a, Vec<N> b) {
#pragma unroll
    MDCG_EACH a.v[k] += b.v[k];
    return a;
}
template <int N>
MDCG_INLINE Vec<N> operator-(Vec<N> a, Vec<N> b) {
#pragma unroll
    MDCG_EACH a.v[k] -= b.v[k];
    return a;
}
template <int N>
MDCG_INLINE Vec<N> operator-(Vec<N> a) {
#pragma unroll
    MDCG_EACH a.v[k] = -a.v[k];
    return a;
}
template <int N>
MDCG_INLINE Vec<N> operator*(Vec<N> a, Vec<N> b) {
#pragma unroll
    MDCG_EACH a.v[k] *= b.v[k];
    return a;
}
template <int N>
MDCG_INLINE Vec<N> operator*(T a, Vec<N> b) {
#pragma unroll
    MDCG_EACH b.v[k] *= a;
    return b;
}
template <int N>
MDCG_INLINE void operator+=(Vec<N>& a, Vec<N> b) {
    a = a + b;
}
template <int N>
MDCG_INLINE T total(Vec<N> a) {
    T sum = a.v[0];
#pragma unroll
    for (int k = 1; k < N; ++k) sum += a.v[k];
    return sum;
}
