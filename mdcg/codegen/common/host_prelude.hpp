// Vector type V of L lanes of T, partial loads and stores, reductions. L and T are set above this
// text.
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MDCG_INLINE static inline __attribute__((always_inline))

typedef T V __attribute__((vector_size(L * sizeof(T)), aligned(L * sizeof(T))));
typedef T VU __attribute__((vector_size(L * sizeof(T)), aligned(sizeof(T)), may_alias));

template <int N>
struct Int {
    static constexpr int value = N;
};

constexpr int padded(int n) { return (n + L - 1) / L * L; }

// Masked access, where the target has it: MDCG_INTRINSIC is `_mm256_##name##ps` or the like.
#if defined(__AVX512VL__) && defined(MDCG_INTRINSIC)
#define MDCG_MASK_LOAD(mask, p) (V) MDCG_INTRINSIC(maskz_loadu_)(mask, p)
#define MDCG_MASK_STORE(mask, p, v) MDCG_INTRINSIC(mask_storeu_)(p, mask, v)
#endif

// First N lanes from memory, the others zero; never touches memory past lane N.
template <int N>
MDCG_INLINE V load(const T* p) {
    if constexpr (N == L) {
        return (V)(*(const VU*)p);
    } else {
#ifdef MDCG_MASK_LOAD
        return MDCG_MASK_LOAD((1u << N) - 1, p);
#else
        V v = {};
        for (int i = 0; i < N; ++i) v[i] = p[i];
        return v;
#endif
    }
}

template <int N>
MDCG_INLINE void store(T* p, V v) {
    if constexpr (N == L) {
        *(VU*)p = (VU)v;
    } else {
#ifdef MDCG_MASK_STORE
        MDCG_MASK_STORE((1u << N) - 1, p, v);
#else
        for (int i = 0; i < N; ++i) p[i] = v[i];
#endif
    }
}

// Aligned full vector, past the cache where the target can.
MDCG_INLINE void stream(T* p, V v) {
#if defined(__AVX512F__) && MDCG_VECTOR_BYTES == 64
    _mm512_stream_si512((__m512i*)p, (__m512i)v);
#elif defined(__AVX__) && MDCG_VECTOR_BYTES == 32
    _mm256_stream_si256((__m256i*)p, (__m256i)v);
#else
    *(V*)p = v;
#endif
}

MDCG_INLINE void stream_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// Lane i from p[i * S].
template <int N, int S>
MDCG_INLINE V load_strided(const T* p) {
    if constexpr (S == 1) {
        return load<N>(p);
    } else {
        V v = {};
        for (int i = 0; i < N; ++i) v[i] = p[i * S];
        return v;
    }
}

template <int N, int S>
MDCG_INLINE void store_strided(T* p, V v) {
    if constexpr (S == 1) {
        store<N>(p, v);
    } else {
        for (int i = 0; i < N; ++i) p[i * S] = v[i];
    }
}

template <int W>
MDCG_INLINE T fold(const T* v) {
    if constexpr (W == 1) {
        return v[0];
    } else {
        typedef T H __attribute__((vector_size(W / 2 * sizeof(T)), aligned(sizeof(T)), may_alias));
        const H h = *(const H*)v + *(const H*)(v + W / 2);
        T half[W / 2];
        memcpy(half, &h, sizeof(h));
        return fold<W / 2>(half);
    }
}

// Sum of all lanes, always in the same order.
MDCG_INLINE T lane_sum(V v) {
    T lanes[L];
    memcpy(lanes, &v, sizeof(v));
    return fold<L>(lanes);
}

// Compilers know s - 0 to be s; 0 + s they compute, as it is not s if s is -0.
MDCG_INLINE V splat(T s) { return s - V{}; }

template <int N>
MDCG_INLINE void zero(T* p) {
    for (int i = 0; i < N; i += L) *(V*)(p + i) = V{};
}

template <int N>
MDCG_INLINE void add(const T* part, T* total) {
    for (int i = 0; i < N; i += L) *(V*)(total + i) += *(const V*)(part + i);
}

// Between a feature block [MUL][D] and its padded component-major form [D][padded(MUL)].
template <int MUL, int D>
MDCG_INLINE void pack_mul_ir(const T* src, T* dst) {
    for (int c = 0; c < D; ++c) {
        for (int u = 0; u < MUL; ++u) dst[c * padded(MUL) + u] = src[u * D + c];
        for (int u = MUL; u < padded(MUL); ++u) dst[c * padded(MUL) + u] = 0;
    }
}

template <int MUL, int D>
MDCG_INLINE void unpack_mul_ir(const T* src, T* dst) {
    for (int u = 0; u < MUL; ++u)
        for (int c = 0; c < D; ++c) dst[u * D + c] = src[c * padded(MUL) + u];
}

template <int MUL, int D>
MDCG_INLINE void pack_ir_mul(const T* src, T* dst) {
    for (int c = 0; c < D; ++c) {
        memcpy(dst + c * padded(MUL), src + c * MUL, MUL * sizeof(T));
        for (int u = MUL; u < padded(MUL); ++u) dst[c * padded(MUL) + u] = 0;
    }
}

template <int MUL, int D>
MDCG_INLINE void unpack_ir_mul(const T* src, T* dst) {
    for (int c = 0; c < D; ++c) memcpy(dst + c * MUL, src + c * padded(MUL), MUL * sizeof(T));
}
