// A pass of a symmetric contraction: its value, its gradients, or the gradients of these. A thread
// takes a channel of a node, a warp 32 channels.
//
// mdcg/codegen/contraction/cuda.py prints R, a struct of constants, and POLYNOMIALS, a struct whose
// function `add` is straight-line code: it evaluates all polynomials, with each common factor
// computed once, and adds to the results.
#pragma once
#include "kernels/static_loops.cuh"
#include "kernels/vectors.cuh"

// Operands and results; null where a pass has none. The rows of a node have CHANNELS channels.
struct Arguments {
    Long n_rows;                    // nodes
    Long n_types;                   // sets of coefficients
    Long n_adds;                    // not 0: adds to dx, if ADDS
    const int* __restrict__ types;  // [n_rows] set of each node, if BY_TYPE
    const T* x;                     // [n_rows * CHANNELS * DIM_IN] features; dx may be the same
    const T* __restrict__ w;        // [n_types * COEFFICIENTS * CHANNELS]; else a row of each node
    const T* __restrict__ y;        // [n_rows * n_types] share of each set in a node, if MIXED
    const T* __restrict__ g;        // [n_rows * CHANNELS * DIM_OUT] gradient of out
    T* __restrict__ out;            // [n_rows * CHANNELS * DIM_OUT]
    T* dx;                          // [n_rows * CHANNELS * DIM_IN]
    T* __restrict__ dw;             // [n_rows * COEFFICIENTS * CHANNELS]
    const T* __restrict__ xa;       // [n_rows * CHANNELS * DIM_IN] cotangent of dx
    const T* __restrict__ wc;       // as w, cotangent of dw
};

// Where component m of the output lies in a row: channel u at start + u * stride.
struct Output {
    int start, stride;
};

// The coefficients of one channel.
struct Coefficients {
    const T* first;
    int stride;
    MDCG_MEMBER T operator[](int r) const { return first[r * stride]; }
};

// Gradients of the coefficients of one channel. A gradient that one group of polynomials completes
// is stored at once; the others are summed first.
template <typename R>
struct CoefficientGradients {
    T* first;
    T sums[R::COEFFICIENTS];
    MDCG_MEMBER void store(int r, T value) { first[r * R::CHANNELS] = value; }
    MDCG_MEMBER T& operator[](int r) { return sums[r]; }
};

// Returns the set that a node has, or -1 for a mixture. All lanes of a warp call this together.
MDCG_INLINE int only_set(const T* y, int n_types, int lane) {
    int found = 0, count = 0;
    bool mixed = false;
    for (int s = lane; s < n_types; s += 32) {
        const T value = __ldg(y + s);
        if (value == T(0)) continue;
        found = s;
        mixed |= ++count > 1 || value != T(1);
    }
    const unsigned owners = __ballot_sync(0xffffffffu, count > 0);
    if (__any_sync(0xffffffffu, mixed) || __popc(owners) != 1) return -1;
    return __shfl_sync(0xffffffffu, found, __ffs(owners) - 1);
}

// Sums the coefficients of one channel over the sets of a node.
template <typename R>
static __device__ __noinline__ void mix(const T* y, int n_types, const T* w, T* sum) {
    for (int r = 0; r < R::COEFFICIENTS; ++r) sum[r] = 0;
    for (int s = 0; s < n_types; ++s) {
        const T value = y[s];
        if (value == T(0)) continue;
        for (int r = 0; r < R::COEFFICIENTS; ++r)
            sum[r] += value * w[(Long(s) * R::COEFFICIENTS + r) * R::CHANNELS];
    }
}

// Returns the coefficients of channel u of node n. `mixed` holds them if the node mixes sets.
template <typename R>
MDCG_INLINE Coefficients coefficients_of(const Arguments& p, const T* w, T* mixed, Long n, int u,
                                         int set) {
    if (R::MIXED && set < 0) {
        mix<R>(p.y + n * p.n_types, int(p.n_types), w + u, mixed);
        return {mixed, 1};
    }
    return {w + Long(set) * (R::COEFFICIENTS * R::CHANNELS) + u, R::CHANNELS};
}

// Loads the components of channel u of node n.
template <typename R>
MDCG_INLINE void load_features(T (&to)[R::DIM_IN], const T* x, Long n, int u) {
    const T* const from = x + (n * R::CHANNELS * R::DIM_IN + u * R::X_CHANNEL);
    if constexpr (R::X_COMPONENT == 1 && R::DIM_IN % QUAD == 0) {
#pragma unroll
        for (int i = 0; i < R::DIM_IN; i += QUAD) {
            const Quad quad = *(const Quad*)(from + i);
#pragma unroll
            for (int j = 0; j < QUAD; ++j) to[i + j] = quad.v[j];
        }
    } else {
#pragma unroll
        for (int i = 0; i < R::DIM_IN; ++i) to[i] = from[i * R::X_COMPONENT];
    }
}

template <typename R>
MDCG_INLINE void store_features(const Arguments& p, T (&dx)[R::DIM_IN], Long n, int u) {
    T* const to = p.dx + (n * R::CHANNELS * R::DIM_IN + u * R::X_CHANNEL);
    if constexpr (R::X_COMPONENT == 1 && R::DIM_IN % QUAD == 0) {
#pragma unroll
        for (int i = 0; i < R::DIM_IN; i += QUAD) {
            Quad quad;
#pragma unroll
            for (int j = 0; j < QUAD; ++j) quad.v[j] = dx[i + j];
            *(Quad*)(to + i) = quad;
        }
    } else {
        if (R::ADDS && p.n_adds) {
#pragma unroll
            for (int i = 0; i < R::DIM_IN; ++i) dx[i] += to[i * R::X_COMPONENT];
        }
#pragma unroll
        for (int i = 0; i < R::DIM_IN; ++i) to[i * R::X_COMPONENT] = dx[i];
    }
}

template <typename R, typename POLYNOMIALS>
MDCG_INLINE void contraction(const Arguments& p) {
    const int lane = threadIdx.x % 32;
    const Long job = Long(blockIdx.x) * R::WARPS + threadIdx.x / 32, n = job / R::CHUNKS;
    const int u = int(job % R::CHUNKS) * 32 + lane;
    if (n >= p.n_rows) return;
    int set = R::MIXED ? only_set(p.y + n * p.n_types, int(p.n_types), lane) : 0;
    if (R::CHANNELS % 32 != 0 && u >= R::CHANNELS) return;
    if (R::BY_TYPE && p.n_types > 1) set = p.types[n];
    const Long rows = R::MIXED || R::BY_TYPE ? 0 : n * (R::COEFFICIENTS * R::CHANNELS);

    T x[R::DIM_IN], xa[R::DIM_IN], g[R::DIM_OUT], out[R::DIM_OUT] = {}, dx[R::DIM_IN] = {};
    T mixed_c[R::COEFFICIENTS], mixed_b[R::COEFFICIENTS];
    load_features<R>(x, p.x, n, u);
    if constexpr (R::HAS_X) load_features<R>(xa, p.xa, n, u);
    const Coefficients c = coefficients_of<R>(p, p.w + rows, mixed_c, n, u, set);
    Coefficients b{};
    if constexpr (R::HAS_W) b = coefficients_of<R>(p, p.wc + rows, mixed_b, n, u, set);
    each<R::DIM_OUT>([&](auto number) {
        constexpr Output output = R::OUTPUT[number];
        const Long place = n * (R::CHANNELS * R::DIM_OUT) + output.start + u * output.stride;
        if constexpr (R::READS_G) g[number] = __ldg(p.g + place);
    });
    CoefficientGradients<R> dc = {p.dw + (n * R::COEFFICIENTS * R::CHANNELS + u)};

    POLYNOMIALS::add(x, xa, g, c, b, out, dx, dc);

    each<R::DIM_OUT>([&](auto number) {
        constexpr Output output = R::OUTPUT[number];
        const Long place = n * (R::CHANNELS * R::DIM_OUT) + output.start + u * output.stride;
        if constexpr (R::SUMS) p.out[place] = out[number];
    });
    if constexpr (R::WANTS_X) store_features<R>(p, dx, n, u);
    each<R::SUMMED_COEFFICIENTS>([&](auto number) {
        constexpr int r = R::SUMMED[number];
        dc.store(r, dc[r]);
    });
}
