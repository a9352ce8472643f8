#pragma once
#include "kernels/activation.cuh"
#include "kernels/radial.hpp"
#include "kernels/radial_functions.hpp"

// The radial network of a tile of EDGES edges, in one block. Values of a layer are in shared memory
// as [unit][edge], weights come from the first-level cache.
//
// Defined before:
//     EDGES, THREADS                 edges and threads of a block
//     BASIS, BASIS_KIND              number of functions; 0 bessel, 1 gaussian, 2 chebyshev
//     TRANSFORM                      0 none, 1 agnesi, 2 soft
//     NORMALIZED                     the argument of the basis is r / r_max
//     CUTOFF                         0 none, 1 polynomial of power p.cutoff, 2 xplor from p.cutoff
//     CUTOFF_WHOLE                   the power, 0: not a whole number
//     CUTOFF_ON_BASIS                it multiplies the basis, not the weights
//     LAYERS, HIDDEN_LAYERS          number of hidden layers, and a LayerPlaces for each
//     SENDER_TABLE, RECEIVER_TABLE   positions in p.weights of [types][padded out]; -1: none
//     SENDER_ROWS, RECEIVER_ROWS     rows of nodes are added to the first layer
//     LAST, CONSTANT                 units of the last layer; a unit of 1 follows them
//     STRIDE                         items of a row of p.hidden
//     ALIGN                          items of 64 bytes
//     WIDEST                         rows of a buffer in shared memory
//     KEPT_LAST, KEPT_ITEMS          position of the last layer in p.kept; items of a tile there
//     TYPED_R_MAX                    r_max depends on the pair of types
constexpr int PITCH = EDGES + 4;

struct LayerPlaces {
    int out, kind, norm;  // units, activation, whether they are normalised
    // Positions in p.weights. weight: [in][padded out], weight_t: [out][padded in].
    int weight, weight_t, bias, norm_weight, norm_bias, factor, epsilon;
    int kept, kept_scale;  // positions in a tile of p.kept
};
constexpr LayerPlaces NETWORK[] = {HIDDEN_LAYERS};

struct alignas(16) Quad {
    T v[4];
};

constexpr int padded(int items) { return (items + ALIGN - 1) / ALIGN * ALIGN; }

template <int I>
struct Hidden {
    static constexpr LayerPlaces L = NETWORK[I];
    static constexpr int IN = I == 0 ? BASIS : NETWORK[I > 0 ? I - 1 : 0].out, N = L.out;
    static constexpr int WIDTH = padded(N), IN_WIDTH = padded(IN);
    static constexpr int ACTIVATION = L.kind;
    static constexpr bool NORMALIZES = L.norm;
    static constexpr int MATRIX = L.weight, TRANSPOSED = L.weight_t, SHIFT = L.bias;
    static constexpr int SCALE = L.norm_weight, OFFSET = L.norm_bias;
    static constexpr int PREFACTOR = L.factor, SMALL = L.epsilon;
    static constexpr int SAVED = L.kept, SAVED_SCALE = L.kept_scale;
};

// What all basis functions of an edge share.
struct Tile {
    double x[EDGES], slope[EDGES];  // argument, its derivative
    double cut[EDGES], cut_slope[EDGES];
    double extra[EDGES];  // gradient of the length, first only through the cutoff of weights
    Long edge[EDGES];     // number in the graph
    int active[EDGES];
};

INLINE void look_at_edges(const RadialArguments<T>& p, Tile& tile) {
    for (int s = threadIdx.x; s < EDGES; s += THREADS) {
        const Long number = Long(blockIdx.x) * EDGES + s;
        const Long edge = p.first + (number < p.num_edges ? number : p.num_edges - 1);
        const Long pair = Long(p.receiver_type[edge]) * p.num_types + p.sender_type[edge];
        const double r = p.length[edge], r_max = p.numbers[BASIS + (TYPED_R_MAX ? pair : 0)];
        tile.edge[s] = edge;
        tile.active[s] = number < p.num_edges && r < r_max;
        tile.cut[s] = 1;
        tile.cut_slope[s] = tile.extra[s] = 0;
        const double inverse = 1.0 / r_max;
#if CUTOFF
        if (tile.active[s]) {  // beyond, high powers overflow
            double cut, slope;
#if CUTOFF == 1
            polynomial_cutoff(p.cutoff, CUTOFF_WHOLE, r * inverse, cut, slope);
#else
            xplor_cutoff(p.cutoff * inverse, r * inverse, cut, slope);
#endif
            tile.cut[s] = cut;
            tile.cut_slope[s] = slope * inverse;
        }
#endif
        tile.x[s] = NORMALIZED ? r * inverse : r;
        tile.slope[s] = NORMALIZED ? inverse : 1.0;
#if TRANSFORM
        const double r_0 = p.numbers[BASIS + (TYPED_R_MAX ? p.num_types * p.num_types : 1) + pair];
        if (TRANSFORM == 1)
            agnesi_transform(p.a, p.p, p.q, r, r_0, tile.x[s], tile.slope[s]);
        else
            soft_transform(p.a, r, r_0, tile.x[s], tile.slope[s]);
#endif
    }
}

// Basis functions, or their derivatives with respect to the length, times the cutoff if
// CUTOFF_ON_BASIS; zeros for edges that are not active.
template <bool DERIVATIVE>
INLINE void basis(const RadialArguments<T>& p, const Tile& tile, T* out) {
    for (int i = threadIdx.x; i < BASIS * EDGES; i += THREADS) {
        const int s = i % EDGES, k = i / EDGES;
        double value = 0, slope = 0;
        if (tile.active[s]) {
            const double x = tile.x[s];
#if BASIS_KIND == 0
            double sine, cosine;
            sincos(x * p.numbers[k], &sine, &cosine);
            value = p.basis_factor * sine / x;
            slope = (p.basis_factor * p.numbers[k] * cosine - value) / x;
#elif BASIS_KIND == 1
            gaussian(p.basis_factor, p.numbers[k], x, value, slope);
#else
            Chebyshev<double> polynomial{x};
            for (int j = 0; j < k; ++j) polynomial.advance(x);
            value = polynomial.value;
            slope = polynomial.slope;
#endif
            slope *= tile.slope[s];
            if (CUTOFF_ON_BASIS) {
                slope = slope * tile.cut[s] + value * tile.cut_slope[s];
                value *= tile.cut[s];
            }
        }
        out[k * PITCH + s] = T(DERIVATIVE ? slope : value);
    }
}

// Calls finish(edge, column, c) with c[i][j] = sum_k a[k][edge + i] b[k][column + j]. a is in
// shared memory, b [K][N] in device memory. A thread computes four edges by four columns.
template <int K, int N, typename Finish>
INLINE void product(const T* a, const T* b, Finish finish) {
    constexpr int GROUPS = EDGES / 4, DOWN = GROUPS < 4 ? GROUPS : 4, ACROSS = 32 / DOWN;
    constexpr int STEPS = GROUPS / DOWN, WARPS = STEPS * ((N / 4 + ACROSS - 1) / ACROSS);
    const int lane = threadIdx.x % 32;
    for (int w = threadIdx.x / 32; w < WARPS; w += THREADS / 32) {
        const int edge = 4 * (lane % DOWN + DOWN * (w % STEPS));
        const int column = 4 * (lane / DOWN + ACROSS * (w / STEPS));
        if (column >= N) continue;
        T c[4][4] = {};
#pragma unroll 8
        for (int k = 0; k < K; ++k) {
            const Quad x = *(const Quad*)(a + k * PITCH + edge);
            const Quad y = *(const Quad*)(b + k * N + column);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) c[i][j] += x.v[i] * y.v[j];
        }
        finish(edge, column, c);
    }
}

// Adds the rows of the edges' ends, by type or by node, to the first layer.
INLINE void add_ends(const RadialArguments<T>& p, const Tile& tile, int edge, int column,
                     T (&c)[4][4]) {
    constexpr int WIDTH = Hidden<0>::WIDTH;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Long s = tile.edge[edge + i];
        const auto add = [&](const T* row) {
            const Quad found = *(const Quad*)(row + column);
#pragma unroll
            for (int j = 0; j < 4; ++j) c[i][j] += found.v[j];
        };
        if (SENDER_TABLE >= 0) add(p.weights + SENDER_TABLE + p.sender_type[s] * WIDTH);
        if (RECEIVER_TABLE >= 0) add(p.weights + RECEIVER_TABLE + p.receiver_type[s] * WIDTH);
        if (SENDER_ROWS) add(p.sender_rows + p.sender[s] * p.sender_width);
        if (RECEIVER_ROWS) add(p.receiver_rows + p.receiver[s] * p.receiver_width);
    }
}

// Normalises the units of a layer to mean 0 and variance 1, multiplies them by the weight, adds the
// bias and activates them, in place. Keeps normalised values and 1 / deviation.
template <int I>
INLINE void normalize(const RadialArguments<T>& p, T* values, T* kept) {
    using H = Hidden<I>;
    constexpr int N = H::N;
    const T *weight = p.weights + H::SCALE, *bias = p.weights + H::OFFSET;
    const T factor = p.weights[H::PREFACTOR], epsilon = p.weights[H::SMALL];
    for (int s = threadIdx.x; s < EDGES; s += THREADS) {
        T mean = 0, variance = 0, slope;
        for (int k = 0; k < N; ++k) mean += values[k * PITCH + s];
        mean /= T(N);
        for (int k = 0; k < N; ++k) {
            const T d = values[k * PITCH + s] - mean;
            variance += d * d;
        }
        const T inverse = T(1) / sqrt(variance / T(N) + epsilon);
        if (kept) kept[H::SAVED_SCALE + s] = inverse;
        for (int k = 0; k < N; ++k) {
            const T n = (values[k * PITCH + s] - mean) * inverse;
            if (kept) kept[H::SAVED + k * EDGES + s] = n;
            values[k * PITCH + s] =
                factor * activate(H::ACTIVATION, n * weight[k] + bias[k], slope);
        }
    }
}

// Evaluates layers I and later; returns the buffer with the values of the last one.
template <int I>
INLINE T* layers_forward(const RadialArguments<T>& p, const Tile& tile, T* in, T* out, T* kept) {
    if constexpr (I < LAYERS) {
        using H = Hidden<I>;
        const T* const bias = p.weights + H::SHIFT;
        const T factor = p.weights[H::PREFACTOR];
        product<H::IN, H::WIDTH>(in, p.weights + H::MATRIX, [&](int edge, int column, T(&c)[4][4]) {
            if (I == 0) add_ends(p, tile, edge, column, c);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (column + j >= H::N) break;
                const T b = bias[column + j];
                Quad value, slope;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    value.v[i] = c[i][j] + b;
                    if (H::NORMALIZES) continue;
                    value.v[i] = factor * activate(H::ACTIVATION, value.v[i], slope.v[i]);
                    slope.v[i] *= factor;
                }
                *(Quad*)(out + (column + j) * PITCH + edge) = value;
                if (!H::NORMALIZES && kept)
                    *(Quad*)(kept + H::SAVED + (column + j) * EDGES + edge) = slope;
            }
        });
        __syncthreads();
        if constexpr (H::NORMALIZES) {
            normalize<I>(p, out, kept);
            __syncthreads();
        }
        return layers_forward<I + 1>(p, tile, out, in, kept);
    } else {
        return in;
    }
}

// Turns gradients of a normalised layer's values into gradients of its preactivations, in place.
template <int I>
INLINE void normalize_backward(const RadialArguments<T>& p, T* d, const T* kept) {
    using H = Hidden<I>;
    constexpr int N = H::N;
    const T *weight = p.weights + H::SCALE, *bias = p.weights + H::OFFSET;
    const T factor = p.weights[H::PREFACTOR];
    for (int s = threadIdx.x; s < EDGES; s += THREADS) {
        T total = 0, along = 0;
        for (int k = 0; k < N; ++k) {
            const T n = kept[H::SAVED + k * EDGES + s];
            T slope;
            activate(H::ACTIVATION, n * weight[k] + bias[k], slope);
            const T g = d[k * PITCH + s] * (factor * slope) * weight[k];
            d[k * PITCH + s] = g;
            total += g;
            along += g * n;
        }
        const T mean = total / T(N), steep = along / T(N), scale = kept[H::SAVED_SCALE + s];
        for (int k = 0; k < N; ++k)
            d[k * PITCH + s] =
                (d[k * PITCH + s] - mean - kept[H::SAVED + k * EDGES + s] * steep) * scale;
    }
}

// d holds the gradients of a layer's values. Adds the gradient of the length to tile.extra.
template <int I>
INLINE void layers_backward(const RadialArguments<T>& p, Tile& tile, T* d, T* other,
                            const T* kept) {
    using H = Hidden<I>;
    constexpr int N = H::N;
    if constexpr (H::NORMALIZES) {
        normalize_backward<I>(p, d, kept);
    } else {
        for (int i = threadIdx.x; i < N * EDGES; i += THREADS)
            d[i / EDGES * PITCH + i % EDGES] *= kept[H::SAVED + i];
    }
    if constexpr (I > 0) {
        __syncthreads();
        product<N, H::IN_WIDTH>(d, p.weights + H::TRANSPOSED,
                                [&](int edge, int column, T(&c)[4][4]) {
#pragma unroll
                                    for (int j = 0; j < 4; ++j) {
                                        if (column + j >= H::IN) break;
                                        *(Quad*)(other + (column + j) * PITCH +
                                                 edge) = {{c[0][j], c[1][j], c[2][j], c[3][j]}};
                                    }
                                });
        __syncthreads();
        layers_backward<(I > 0 ? I - 1 : 0)>(p, tile, other, d, kept);
    } else {
        constexpr int WIDTH = H::WIDTH;
        basis<true>(p, tile, other);
        __syncthreads();
        if (p.d_first)
            for (int i = threadIdx.x; i < EDGES * WIDTH; i += THREADS) {
                const int s = i / WIDTH, k = i % WIDTH;
                const Long number = Long(blockIdx.x) * EDGES + s;
                if (number >= p.num_edges) break;
                p.d_first[number * WIDTH + k] = k < N ? d[k * PITCH + s] : T(0);
            }
        __syncthreads();
        // derivatives of preactivations with respect to the length, times d; a thread's sums
        // replace what it alone has read of d
        product<BASIS, WIDTH>(other, p.weights + H::MATRIX, [&](int edge, int column, T(&c)[4][4]) {
            if (column >= N) return;
            Quad sums = {};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (column + j < N)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        sums.v[i] += c[i][j] * d[(column + j) * PITCH + edge + i];
            *(Quad*)(d + column * PITCH + edge) = sums;
        });
        __syncthreads();
        for (int s = threadIdx.x; s < EDGES; s += THREADS) {
            double total = 0;
            for (int k = 0; k < N; k += 4) total += double(d[k * PITCH + s]);
            tile.extra[s] += total;
        }
    }
}
