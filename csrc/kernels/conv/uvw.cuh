// The convolution whose paths have weight matrices (mode uvw), and its gradients: a warp per row.
//
// Most of the bytes of a row (an edge) are its weights, so the kernel is built to read them once. A
// warp first multiplies the row's features and attributes to vectors left[u, v][c] in shared
// memory. Then the weight matrices stream through its registers, which gives outputs, gradients of
// weights and gradients of those vectors in one pass. Finally the warp pulls the gradients of the
// vectors back to features and attributes. Paths of mode uvu in the same problem have no matrices;
// they run in the same kernel with a lane per channel.
//
// mdcg/codegen/conv/uvw.py prints structs of constants: K for the kernel; R, which derives from K,
// for a body (some channels of one input block, and paths that read them); S for a stack of weight
// matrices. A turn is the set of paths whose vectors are in shared memory at the same time.
#pragma once
#include "kernels/conv/arguments.cuh"
#include "kernels/conv/path_sums.cuh"
#include "kernels/conv/rows.cuh"
#include "kernels/warp_sums.cuh"

template <typename... Members>
struct List {};
template <typename Bodies, typename Stacks>
struct Turn {};

// Numbers of rows: the edge, its sender and its receiver, and the row of dx.
struct Row {
    Long e, s, receiver, to;
};

// ---- weight matrices that stream through a warp
//
// All paths into an output block form one stack: a matrix [ROWS][MUL] of weights with a row for
// each channel pair (u, v) of a path, and vectors [ROWS][C], the product of each pair without
// weights. G lanes share a row of weights, so 32 / G rows are read at a time.

// The weights of the rows from `first` on begin at `column`.
struct Segment {
    int first, column;
};

// Column of the first weight of row r.
template <typename S>
MDCG_INLINE int weight_column(int r) {
    int place = S::SEGMENT[0].column + r * S::MUL;
    each_between<1, S::SEGMENTS>([&](auto number) {
        constexpr Segment before = S::SEGMENT[number - 1], segment = S::SEGMENT[number];
        constexpr int SHIFT =
            segment.column - before.column - (segment.first - before.first) * S::MUL;
        place += r < segment.first ? 0 : SHIFT;
    });
    return place;
}

enum Uses {
    SUM_W = 1,   // out += W^T left_w
    SUM_C = 2,   // out += C^T left_c, with C the cotangent of W
    GRAD_W = 4,  // dW = left_w g^T
    PULL_W = 8,  // pull_w = W g
    PULL_C = 16  // pull_c = C g
};

// The vectors of one warp in shared memory, the gradient of its output row, and its output row.
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

template <typename S>
MDCG_INLINE Vec<S::N> load_channels(const T* row, int channel, int c) {
    Vec<S::N> a;
#pragma unroll
    for (int k = 0; k < S::N; ++k)
        a.v[k] = __ldg(row + (channel + k) * S::CHANNEL + c * S::COMPONENT);
    return a;
}

template <typename S, int USES>
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
            // All loads of a batch are under way before the first result is used. They are not
            // streaming loads, because the rest of a cache line must stay for the next request.
#pragma unroll
            for (int b = 0; b < S::BATCH; ++b) {
                const int r = (first + b) * GROUPS + group;
                const bool active = r < S::ROWS && (32 % S::G == 0 || group < GROUPS);
#pragma unroll
                for (int t = 0; t < S::PANEL; ++t) {
                    const int place = weight_column<S>(r) + start + t * S::G * S::N;
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
                            store_stream(dw + weight_column<S>(r) + start + t * S::G * S::N, grad);
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

// Gradient of shared weights: the block's threads share the matrix and sum over the block's rows
// (edges). The vectors of two rows are ITEMS apart, their output gradients g_stride apart.
template <typename S, int THREADS, int ITEMS>
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
        add(dw + weight_column<S>(r) + channel, sum);
    }
}

// What the kernel K does with the weights.
template <typename K>
constexpr int uses_of() {
    return (K::SUMS && K::LEFT_W >= 0 ? SUM_W : 0) | (K::LEFT_C >= 0 ? SUM_C : 0) |
           (K::WANTS_W && K::LEFT_W >= 0 && !K::SHARED_WEIGHTS ? GRAD_W : 0) |
           (K::PULL_W >= 0 ? PULL_W : 0) | (K::PULL_C >= 0 ? PULL_C : 0);
}

// Whether the rows of a block advance together, to sum the gradient of shared weights.
template <typename K>
constexpr bool in_step() {
    return K::WANTS_W && K::LEFT_W >= 0 && K::SHARED_WEIGHTS;
}

// Gradient of the weights that all rows share; DETERMINISTIC: a row of sums per block.
template <typename K>
MDCG_INLINE T* shared_gradient(const Arguments& p) {
    return K::DETERMINISTIC ? p.dw + Long(blockIdx.x) * K::WEIGHTS : p.dw;
}

template <typename K, typename S>
MDCG_INLINE void stream_stack(const Arguments& p, T* mine, const Row& row, int lane) {
    constexpr int USES = uses_of<K>();
    if constexpr (USES != 0) {
        const Long e = K::SHARED_WEIGHTS ? 0 : row.e * K::WEIGHTS;
        const Long out = row.receiver * K::OUT_ROW + S::OUT;
        T* const to = K::OUT >= 0 ? mine + K::OUT + S::OUT : p.out + out;
        stream<S, USES>(
            p.w + e, p.wc + e, p.dw + e,
            Vectors{mine + K::LEFT_W + S::BASE, mine + K::LEFT_C + S::BASE,
                    mine + K::PULL_W + S::BASE, mine + K::PULL_C + S::BASE, p.g + out, to},
            lane);
    }
}

// ---- bodies: a lane per channel, before and after the weights

// Adds to an item of a row: in shared memory from PLACE on; PLACE -1: in global memory.
template <int PLACE>
MDCG_INLINE void add_item(T* mine, T* row, int item, T value) {
    if constexpr (PLACE >= 0)
        mine[PLACE + item] += value;
    else
        add(row + item, value);
}

// The vector of path I for channels (u, v).
template <typename R, int I>
MDCG_INLINE T* vector_of(T* mine, int place, int u, int v) {
    constexpr int DIM = R::PATH[I].dim_out;
    return mine + place + R::BASE[I] + (u - R::FIRST) * (R::COPIES * DIM) + v * DIM;
}

// Stores the vectors that the weights of path I multiply: its products without weights.
template <typename R, int I>
MDCG_INLINE void store_vectors(T* mine, int u, int v, const Vec<1>* x, const Vec<1>* xa, const T* m,
                               const T* b) {
    constexpr Path path = R::PATH[I];
    T plain[path.dim_out] = {}, moved[path.dim_out] = {};  // M x, and M xa + B x
    each_between<path.first_entry, path.end_entry>([&](auto position) {
        constexpr Entry entry = R::ENTRY[position];
        const T value = entry.sign > 0 ? m[entry.nonzero] : -m[entry.nonzero];
        plain[entry.c] += value * x[entry.a].v[0];
        if constexpr (R::HAS_X) moved[entry.c] += value * xa[entry.a].v[0];
    });
    if constexpr (R::HAS_Y) {
        each_between<path.first_entry, path.end_entry>([&](auto position) {
            constexpr Entry entry = R::ENTRY[position];
            const T value = entry.sign > 0 ? b[entry.nonzero] : -b[entry.nonzero];
            moved[entry.c] += value * x[entry.a].v[0];
        });
    }
#pragma unroll
    for (int c = 0; c < path.dim_out; ++c) {
        if constexpr (R::LEFT_W >= 0)
            vector_of<R, I>(mine, R::LEFT_W, u, v)[c] = R::DOUBLE ? moved[c] : plain[c];
        if constexpr (R::LEFT_C >= 0) vector_of<R, I>(mine, R::LEFT_C, u, v)[c] = plain[c];
    }
}

// Pulls the gradients of the vectors of path I back to features and attributes. q is W g, and h the
// same for the cotangent of W.
template <typename R, int I>
MDCG_INLINE void pull_vectors(T* mine, int u, int v, const Vec<1>* x, const Vec<1>* xa, const T* m,
                              const T* b, Vec<1>* dx, T* dy) {
    constexpr Path path = R::PATH[I];
    T q[path.dim_out] = {}, h[path.dim_out] = {};
#pragma unroll
    for (int c = 0; c < path.dim_out; ++c) {
        if constexpr (R::PULL_W >= 0) q[c] = vector_of<R, I>(mine, R::PULL_W, u, v)[c];
        if constexpr (R::PULL_C >= 0) h[c] = vector_of<R, I>(mine, R::PULL_C, u, v)[c];
    }
    T d[R::DIM] = {}, dm[path.num_nonzeros > 0 ? path.num_nonzeros : 1] = {};
    // what M multiplies: q, or h in double backward passes; then B
    each_between<path.first_entry, path.end_entry>([&](auto position) {
        constexpr Entry entry = R::ENTRY[position];
        constexpr bool USED = !R::DOUBLE || R::HAS_W;
        const T value = entry.sign > 0 ? m[entry.nonzero] : -m[entry.nonzero];
        const T from = R::DOUBLE ? h[entry.c] : q[entry.c], with = x[entry.a].v[0];
        if constexpr (USED) d[entry.a] += value * from;
        if constexpr (USED) dm[entry.nonzero] += (entry.sign > 0 ? with : -with) * from;
    });
    each_between<path.first_entry, path.end_entry>([&](auto position) {
        constexpr Entry entry = R::ENTRY[position];
        const T value = R::HAS_Y ? (entry.sign > 0 ? b[entry.nonzero] : -b[entry.nonzero]) : T(0);
        const T with = R::HAS_X ? xa[entry.a].v[0] : T(0);
        if constexpr (R::HAS_Y) d[entry.a] += value * q[entry.c];
        if constexpr (R::HAS_X) dm[entry.nonzero] += (entry.sign > 0 ? with : -with) * q[entry.c];
    });
#pragma unroll
    for (int a = 0; a < R::DIM; ++a) dx[a].v[0] += d[a];
    if constexpr (R::WANTS_Y) add_attributes<R, path.first_term, path.end_term>(dm, dy);
}

// Outputs and gradients of path I of mode uvu for one channel.
template <typename R, int I>
MDCG_INLINE void add_diagonal(const Arguments& p, T* mine, const Row& row, int u, int v,
                              const Vec<1>* x, const Vec<1>* xa, const T* m, const T* b, Vec<1>* dx,
                              T* dy) {
    constexpr Path path = R::PATH[I];
    constexpr bool WEIGHTED = path.weight >= 0;
    const Long weight =
        (R::SHARED_WEIGHTS ? 0 : row.e * R::WEIGHTS) + path.weight + u * R::COPIES + v;
    Vec<1> w{}, wc{}, g[path.dim_out], out[path.dim_out] = {};
    if constexpr (WEIGHTED) w.v[0] = __ldg(p.w + weight);
    if constexpr (WEIGHTED && R::HAS_W) wc.v[0] = __ldg(p.wc + weight);
    each<path.dim_out>([&](auto c) {
        constexpr Output output = R::OUTPUT[path.output + c];
        if constexpr (R::PULLS)
            g[c].v[0] = __ldg(p.g + row.receiver * R::OUT_ROW + output.start + u * output.stride);
    });
    add_path<R, I>(x, xa, w, wc, g, m, b, out, dx, dy, [&](Vec<1> dw) {
        if constexpr (R::SHARED_WEIGHTS)
            add(shared_gradient<R>(p) + weight, dw.v[0]);
        else
            p.dw[weight] = dw.v[0];
    });
    each<path.dim_out>([&](auto c) {
        constexpr Output output = R::OUTPUT[path.output + c];
        if constexpr (R::SUMS)
            add_item<R::OUT>(mine, p.out + row.receiver * R::OUT_ROW,
                             output.start + u * output.stride, out[c].v[0]);
    });
}

// Runs a body before the weights (LEFT) or after them. A body of mode uvu has no vectors and runs
// only after them.
template <typename R, bool LEFT>
MDCG_INLINE void run_body(const Arguments& p, T* mine, const Row& row, int lane) {
    constexpr bool GIVES_Y = !LEFT && R::WANTS_Y && R::NUM_ATTRIBUTES > 0;
    for (int v = 0; v < R::COPIES; ++v) {  // channels of the block of attributes
        T m[R::NONZEROS], b[R::NONZEROS];
        each<R::NONZEROS>([&](auto n) {
            const Long start = row.e * R::ATTRIBUTES + v * R::COPY;
            m[n] = nonzero_of<R, n>([&](int b) { return __ldg(p.y + start + b); });
            if constexpr (R::HAS_Y)
                b[n] = nonzero_of<R, n>([&](int b) { return __ldg(p.yb + start + b); });
        });
        T dy[R::DY_ITEMS] = {};
        for (int u = R::FIRST + lane; u < R::LAST; u += 32) {
            Vec<1> x[R::DIM], xa[R::DIM], dx[R::DIM] = {};
#pragma unroll
            for (int a = 0; a < R::DIM; ++a) {
                const Long place = row.s * R::X_ROW + R::X_START[a] + u * R::X_STRIDE;
                x[a].v[0] = __ldg(p.x + place);
                if constexpr (R::HAS_X) xa[a].v[0] = __ldg(p.xa + place);
            }
            each<R::PATHS>([&](auto number) {
                constexpr int I = number;
                const T* const m_path = m + R::PATH[I].nonzero;
                const T* const b_path = b + R::PATH[I].nonzero;
                if constexpr (LEFT)
                    store_vectors<R, I>(mine, u, v, x, xa, m_path, b_path);
                else if constexpr (R::MATRICES)
                    pull_vectors<R, I>(mine, u, v, x, xa, m_path, b_path, dx, dy);
                else
                    add_diagonal<R, I>(p, mine, row, u, v, x, xa, m_path, b_path, dx, dy);
            });
            if constexpr (!LEFT && R::WANTS_X) {
#pragma unroll
                for (int a = 0; a < R::DIM; ++a)
                    add_item<R::DX>(mine, p.dx + row.to * R::DX_ROW,
                                    R::DX_START[a] + u * R::DX_STRIDE, dx[a].v[0]);
            }
        }
        if constexpr (GIVES_Y)
            each_lane_sum<R>(dy, lane, [&](int item, T sum) {
                add_item<R::DY>(mine, p.dy + row.e * R::ATTRIBUTES,
                                R::FIRST_ATTRIBUTE + item + v * R::COPY, sum);
            });
    }
}

// Whether a body runs before the weights (`left`), or after them.
template <typename R>
constexpr bool has_phase(bool left) {
    if (!R::MATRICES) return !left;
    return left ? R::LEFT_W >= 0 || R::LEFT_C >= 0 : R::PULL_W >= 0 || R::PULL_C >= 0;
}
template <typename R>
MDCG_INLINE void run_left(const Arguments& p, T* mine, const Row& row, int lane) {
    if constexpr (has_phase<R>(true)) run_body<R, true>(p, mine, row, lane);
}
template <typename R>
MDCG_INLINE void run_pull(const Arguments& p, T* mine, const Row& row, int lane) {
    if constexpr (has_phase<R>(false)) {
        run_body<R, false>(p, mine, row, lane);
        __syncwarp();  // the next body may add to the same rows
    }
}

// ---- rows

template <int PLACE, int ITEMS>
MDCG_INLINE void clear_row(T* mine, int lane) {
    if constexpr (PLACE >= 0)
        for (int i = lane; i < ITEMS; i += 32) mine[PLACE + i] = 0;
}

// One turn for a row. Where the rows of a block advance together, the block has `count` rows, whose
// gradients g begin at row `first`, and warps without a row are not `active`.
template <typename K, typename... Bodies, typename... Stacks>
MDCG_INLINE void run_turn(Turn<List<Bodies...>, List<Stacks...>>, const Arguments& p,
                          const T* shared, T* mine, const Row& row, bool active, Long first,
                          int count, int lane) {
    constexpr bool STEPS = in_step<K>() && sizeof...(Stacks) > 0;
    if (active) {
        (run_left<Bodies>(p, mine, row, lane), ...);
        if constexpr ((has_phase<Bodies>(true) || ...)) __syncwarp();
        (stream_stack<K, Stacks>(p, mine, row, lane), ...);
        if constexpr (!STEPS && uses_of<K>() != 0 && sizeof...(Stacks) > 0) __syncwarp();
    }
    if constexpr (STEPS) {
        __syncthreads();
        constexpr Long G_STRIDE = K::CONV ? 0 : K::OUT_ROW;
        (sum_weight_gradients<Stacks, K::WARPS * 32, K::ITEMS>(
             shared_gradient<K>(p), shared + K::LEFT_W + Stacks::BASE,
             p.g + first * K::OUT_ROW + Stacks::OUT, G_STRIDE, count),
         ...);
    }
    if (active) (run_pull<Bodies>(p, mine, row, lane), ...);
    if constexpr (STEPS) __syncthreads();
}

// Runs all turns for a row, then writes the row's gradients.
template <typename K, typename... Turns>
MDCG_INLINE void run_row(const Arguments& p, const T* shared, T* mine, const Row& row, bool active,
                         Long first, int count, int lane) {
    if constexpr (K::WANTS_X) clear_row<K::DX, K::DX_ROW>(mine, lane);
    if constexpr (K::WANTS_Y) clear_row<K::DY, K::ATTRIBUTES>(mine, lane);
    __syncwarp();
    (run_turn<K>(Turns(), p, shared, mine, row, active, first, count, lane), ...);
    if (!active) return;
    if constexpr (K::WANTS_X && K::DX >= 0)
        for (int i = lane; i < K::DX_ROW; i += 32) {
            T* const to = p.dx + row.to * K::DX_ROW + i;
            if (K::CONV && !K::DETERMINISTIC)
                add(to, mine[K::DX + i]);
            else
                *to = mine[K::DX + i];
        }
    if constexpr (K::WANTS_Y && K::DY >= 0)
        for (int i = lane; i < K::ATTRIBUTES; i += 32)
            p.dy[row.e * K::ATTRIBUTES + i] = mine[K::DY + i];
    __syncwarp();
}

// Number of the row of dx for the edge at a position in receiver order.
template <typename K>
MDCG_INLINE Long feature_row(const Arguments& p, int k, Long s) {
    if constexpr (K::CONV && K::WANTS_X && K::DETERMINISTIC) return p.place[k];
    return s;
}

template <typename K, typename... Turns>
MDCG_INLINE void run_uvw(const Arguments& p) {
    END_IDLE_LANES();
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const shared = (T*)shared_memory;
    T* const mine = shared + warp * K::ITEMS;
    if constexpr (K::SUMS) clear_row<K::OUT, K::OUT_ROW>(mine, lane);
    Long row = blockIdx.x;
    bool active = true;
    if constexpr (K::CONV && in_step<K>()) {
        const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];
        for (int from = begin; from < end; from += K::WARPS) {
            const int k = from + warp;
            active = k < end;
            const Long e = active ? p.order[k] : 0, s = active ? p.sender[k] : 0;
            const Row numbers{e, s, row, active ? feature_row<K>(p, k, s) : 0};
            run_row<K, Turns...>(p, shared, mine, numbers, active, row, min(K::WARPS, end - from),
                                 lane);
        }
    } else if constexpr (K::CONV) {
        const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];
        // the numbers of the next edge are loaded while this one is computed
        int next_e = 0, next_s = 0;
        const auto fetch = [&](int k) {
            if (k < end) next_e = p.order[k], next_s = p.sender[k];
        };
        fetch(begin + warp);
        for (int k = begin + warp; k < end; k += K::WARPS) {
            const Long e = next_e, s = next_s;
            fetch(k + K::WARPS);
            const Row numbers{e, s, row, feature_row<K>(p, k, s)};
            run_row<K, Turns...>(p, shared, mine, numbers, true, row, 1, lane);
        }
    } else {
        const Long first = row * K::WARPS;
        const int count = int(min(Long(K::WARPS), p.n_rows - first));
        row = first + warp;
        active = warp < count;
        if (!in_step<K>() && !active) return;
        run_row<K, Turns...>(p, shared, mine, Row{row, row, row, row}, active, first, count, lane);
    }
    if constexpr (K::SUMS && K::OUT >= 0) {
        if constexpr (K::CONV) {  // the sum over the warps, always in one order
            __syncthreads();
            for (int i = threadIdx.x; i < K::OUT_ROW; i += K::WARPS * 32) {
                T sum = 0;
                for (int w = 0; w < K::WARPS; ++w) sum += shared[w * K::ITEMS + K::OUT + i];
                p.out[row * K::OUT_ROW + i] = sum;
            }
        } else if (active) {
            for (int i = lane; i < K::OUT_ROW; i += 32)
                p.out[row * K::OUT_ROW + i] = mine[K::OUT + i];
        }
    }
}
