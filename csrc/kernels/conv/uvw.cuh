#pragma once
#include "kernels/conv/arguments.cuh"
#include "kernels/conv/rows.cuh"

// ---- weight matrices that stream through a warp
//
// A warp holds one row (edge). All paths into an output block are one stack: a matrix [ROWS][MUL]
// of weights, a row per channel pair (u, v) of a path, and beside it the vectors [ROWS][C] of what
// the path makes of its inputs. G lanes share a row of weights, so 32 / G rows are read at a time.

enum Uses {
    SUM_W = 1,   // out += W^T left_w
    SUM_C = 2,   // out += C^T left_c, with C the cotangent of W
    GRAD_W = 4,  // dW = left_w g^T
    PULL_W = 8,  // pull_w = W g
    PULL_C = 16  // pull_c = C g
};

// Vectors of one warp in shared memory, the gradient of its output row, its accumulated output.
struct Vectors {
    const T* left_w;
    const T* left_c;
    T* pull_w;
    T* pull_c;
    const T* g;
    T* out;
};

// Sums over COUNT lanes, STRIDE apart; valid in the lane whose index among them is 0.
template <int COUNT, int STRIDE>
MDCG_INLINE T fold(T v, int index) {
    constexpr int HALF = COUNT > 16 ? 16 : COUNT > 8 ? 8 : COUNT > 4 ? 4 : COUNT > 2 ? 2 : 1;
#pragma unroll
    for (int d = COUNT > 1 ? HALF : 0; d > 0; d /= 2) {
        const T other = __shfl_down_sync(0xffffffffu, v, d * STRIDE);
        if ((COUNT & (COUNT - 1)) == 0 || index + d < COUNT) v += other;
    }
    return v;
}

template <class S>
MDCG_INLINE Vec<S::N> load_channels(const T* row, int channel, int c) {
    Vec<S::N> a;
#pragma unroll
    for (int k = 0; k < S::N; ++k)
        a.v[k] = __ldg(row + (channel + k) * S::CHANNEL + c * S::COMPONENT);
    return a;
}

template <class S, int USES>
MDCG_INLINE void stream(const T* __restrict__ w, const T* __restrict__ wc, T* __restrict__ dw,
                        Vectors at, int lane) {
    typedef Vec<S::N> V;
    constexpr int GROUPS = 32 / S::G, VECTORS = S::MUL / S::N;
    constexpr int TILES = (VECTORS + S::G - 1) / S::G, STEPS = (S::ROWS + GROUPS - 1) / GROUPS;
    constexpr bool SUMS = USES & (SUM_W | SUM_C), LEFT_W = USES & (SUM_W | GRAD_W);
    constexpr bool READS_W = USES & (SUM_W | PULL_W), READS_C = USES & (SUM_C | PULL_C);
    constexpr bool READS_G = USES & (GRAD_W | PULL_W | PULL_C);
    const int group = lane / S::G, column = lane - group * S::G;
    for (int panel = 0; panel < TILES; panel += S::PANEL) {
        V g[S::PANEL][S::C], o[S::PANEL][S::C];
        bool inside[S::PANEL];
#pragma unroll
        for (int t = 0; t < S::PANEL; ++t) {
            const int vector = (panel + t) * S::G + column;
            inside[t] = vector < VECTORS;
#pragma unroll
            for (int c = 0; c < S::C; ++c) {
                o[t][c] = V{};
                if constexpr (READS_G)
                    g[t][c] = inside[t] ? load_channels<S>(at.g, vector * S::N, c) : V{};
            }
        }
        const int start = (panel * S::G + column) * S::N;
        for (int first = 0; first < STEPS; first += S::BATCH) {
            V wv[S::BATCH][S::PANEL], cv[S::BATCH][S::PANEL];
            // All loads of a batch are under way before the first is used. Not streaming ones: the
            // rest of a line must stay in the cache for the next request.
#pragma unroll
            for (int b = 0; b < S::BATCH; ++b) {
                const int r = (first + b) * GROUPS + group;
                const bool active = r < S::ROWS && (32 % S::G == 0 || group < GROUPS);
#pragma unroll
                for (int t = 0; t < S::PANEL; ++t) {
                    const int place = S::offset(r) + start + t * S::G * S::N;
                    const bool there = active && inside[t];
                    if constexpr (READS_W) wv[b][t] = there ? load(w + place, V()) : V{};
                    if constexpr (READS_C) cv[b][t] = there ? load(wc + place, V()) : V{};
                }
            }
#pragma unroll
            for (int b = 0; b < S::BATCH; ++b) {
                const int r = (first + b) * GROUPS + group;
                const bool active = r < S::ROWS && (32 % S::G == 0 || group < GROUPS);
                T lw[S::C], lc[S::C], pw[S::C], pc[S::C];
#pragma unroll
                for (int c = 0; c < S::C; ++c) {
                    pw[c] = pc[c] = T(0);
                    if constexpr (LEFT_W) lw[c] = active ? at.left_w[r * S::C + c] : T(0);
                    if constexpr (USES & SUM_C) lc[c] = active ? at.left_c[r * S::C + c] : T(0);
                }
#pragma unroll
                for (int t = 0; t < S::PANEL; ++t) {
                    V grad = {};
#pragma unroll
                    for (int c = 0; c < S::C; ++c) {
                        if constexpr (USES & SUM_W) o[t][c] += lw[c] * wv[b][t];
                        if constexpr (USES & SUM_C) o[t][c] += lc[c] * cv[b][t];
                        if constexpr (USES & GRAD_W) grad += lw[c] * g[t][c];
                        if constexpr (USES & PULL_W) pw[c] += total(wv[b][t] * g[t][c]);
                        if constexpr (USES & PULL_C) pc[c] += total(cv[b][t] * g[t][c]);
                    }
                    if constexpr (USES & GRAD_W) {
                        if (active && inside[t])
                            store_stream(dw + S::offset(r) + start + t * S::G * S::N, grad);
                    }
                }
#pragma unroll
                for (int c = 0; c < S::C; ++c) {
                    if constexpr (USES & PULL_W) pw[c] = fold<S::G, 1>(pw[c], column);
                    if constexpr (USES & PULL_C) pc[c] = fold<S::G, 1>(pc[c], column);
                    if (active && column == 0) {
                        T* const to_w = at.pull_w + r * S::C + c;
                        T* const to_c = at.pull_c + r * S::C + c;
                        if constexpr (USES & PULL_W) *to_w = panel ? *to_w + pw[c] : pw[c];
                        if constexpr (USES & PULL_C) *to_c = panel ? *to_c + pc[c] : pc[c];
                    }
                }
            }
        }
        if constexpr (SUMS) {
#pragma unroll
            for (int t = 0; t < S::PANEL; ++t)
#pragma unroll
                for (int c = 0; c < S::C; ++c)
#pragma unroll
                    for (int k = 0; k < S::N; ++k) {
                        const T sum = fold<GROUPS, S::G>(o[t][c].v[k], group);
                        const int channel = start + t * S::G * S::N + k;
                        T* const to = at.out + channel * S::CHANNEL + c * S::COMPONENT;
                        if (group == 0 && inside[t]) {
                            if constexpr (S::DIRECT)
                                add(to, sum);
                            else
                                *to += sum;
                        }
                    }
        }
    }
}

// Gradient of shared weights: the block's threads share the matrix and sum over its rows (edges),
// ITEMS apart in shared memory; their output gradients lie g_stride apart.
template <class S, int THREADS, int ITEMS>
MDCG_INLINE void sum_weight_gradients(T* __restrict__ dw, const T* left_w, const T* g,
                                      Long g_stride, int rows) {
    constexpr int VECTORS = S::MUL / S::N;
    for (int i = threadIdx.x; i < S::ROWS * VECTORS; i += THREADS) {
        const int r = i / VECTORS, channel = (i - r * VECTORS) * S::N;
        Vec<S::N> sum = {};
        for (int j = 0; j < rows; ++j)
#pragma unroll
            for (int c = 0; c < S::C; ++c)
                sum += left_w[j * ITEMS + r * S::C + c] *
                       load_channels<S>(g + j * g_stride, channel, c);
        add(dw + S::offset(r) + channel, sum);
    }
}
