// The convolution with weights per edge, its gradients and the gradients of these:
//
//     out[receiver] += sum over paths of M(y[edge]) (w[edge] x[sender])
//
// A block takes a receiver and walks its edges (CONV), or takes BATCH rows, each with an output row
// of its own. Every warp has a task: 32 * CHANNELS channels of an input block, and some of the
// block's paths. A warp keeps everything that it sums over edges in registers. All warps together
// evaluate the path matrices of a batch of edges into shared memory, while the operands of the next
// edges are being loaded.
//
// R is the struct of constants of one task, which mdcg/codegen/conv/edge_weights.py prints. It
// derives from the structs of its kernel and of the pass. HAS_X, HAS_Y and HAS_W say which
// cotangents are given, WANTS_X etc. which gradients are wanted, and SUMS whether `out` is wanted:
// the value, or in double backward passes the gradient of g.
#pragma once
#include "kernels/conv/arguments.cuh"
#include "kernels/conv/path_sums.cuh"
#include "kernels/conv/rows.cuh"
#include "kernels/warp_sums.cuh"

// The CHANNELS channels of a lane, from u on.
template <typename R>
struct Channels {
    int lane, chunk;
    int u = (chunk * 32 + lane) * R::CHANNELS;
    int left = R::WHOLE ? R::CHANNELS : R::MUL - u;  // channels of the block from u on
    bool inside = R::WHOLE || u < R::PADDED;         // a packed row has them
};

// One edge's operands in the channels of a lane.
template <typename R>
struct Operands {
    Vec<R::CHANNELS> x[R::DIM], xa[R::DIM], w[R::MAX_WEIGHTS], wc[R::MAX_WEIGHTS];
};

// What a lane sums over the edges of a receiver, and the gradient that it reads there.
template <typename R>
struct ReceiverSums {
    Vec<R::CHANNELS> out[R::OUTPUTS], g[R::OUTPUTS], dw[R::MAX_WEIGHTS];
};

// What a lane sums over the paths of an edge.
template <typename R>
struct EdgeSums {
    Vec<R::CHANNELS> dx[R::DIM];
    T dy[R::DY_ITEMS];
};

// ---- operands ----------------------------------------------------------------------------------

template <typename R>
MDCG_INLINE void edge_numbers(const Arguments& p, int position, int& e, int& s) {
    e = R::CONV ? p.order[position] : position;
    s = R::CONV ? p.sender[position] : position;
}

// Loads component a of a row of x or xa. Convolutions read packed rows, which have whole vectors.
template <typename R>
MDCG_INLINE Vec<R::CHANNELS> load_features(const T* x, Long s, int a, const Channels<R>& at) {
    typedef Vec<R::CHANNELS> V;
    const T* const from = x + s * R::X_ROW + R::X_START[a];
    if constexpr (!R::CONV)
        return load_some<R::CHANNELS, R::X_STRIDE>(from + at.u * R::X_STRIDE, at.left);
    return at.inside ? load(from + at.u, V()) : V{};
}

// Whether the weights of a path are whole vectors in every row.
template <typename R>
constexpr bool has_weight_vectors(Path path) {
    return path.weight_stride == 1 && R::WEIGHT_COLUMN[path.weight] % R::CHANNELS == 0 &&
           R::WEIGHTS % R::CHANNELS == 0 && R::MUL % R::CHANNELS == 0;
}

// Where the lane's weights of a path begin.
template <typename R>
MDCG_INLINE Long weight_place(Path path, Long e, const Channels<R>& at) {
    const Long row = R::SHARED_WEIGHTS ? 0 : e * R::WEIGHTS;
    return row + R::WEIGHT_COLUMN[path.weight] + at.u * path.weight_stride;
}

template <typename R, int I>
MDCG_INLINE Vec<R::CHANNELS> load_weights(const T* w, Long e, const Channels<R>& at) {
    typedef Vec<R::CHANNELS> V;
    constexpr Path path = R::PATH[I];
    const T* const from = w + weight_place<R>(path, e, at);
    if constexpr (!has_weight_vectors<R>(path))
        return load_some<R::CHANNELS, path.weight_stride>(from, at.left);
    if (!R::WHOLE && at.left <= 0) return V{};
    return R::SHARED_WEIGHTS ? load(from, V()) : load_stream(from, V());
}

// Loads the operands of edges ahead: into a ring of DEPTH edges, or into registers for one edge.
template <typename R, bool RING = (R::DEPTH > 1)>
struct Prefetch;

// Keeps the operands of the next edge in registers.
template <typename R>
struct Prefetch<R, false> {
    const Arguments& p;
    const Channels<R>& at;
    int begin, end;
    T* ring;  // not used
    Operands<R> next = {};
    int next_e = 0, next_s = 0, later_e = 0, later_s = 0;  // of the edge, and of the one behind it

    MDCG_MEMBER void start() {
        if (begin < end) {
            edge_numbers<R>(p, begin, next_e, next_s);
            fetch();
        }
        if (begin + 1 < end) edge_numbers<R>(p, begin + 1, later_e, later_s);
    }
    MDCG_MEMBER void fetch() {
        const Long e = next_e, s = next_s;
#pragma unroll
        for (int a = 0; a < R::DIM; ++a) {
            next.x[a] = load_features<R>(p.x, s, a, at);
            if constexpr (R::HAS_X) next.xa[a] = load_features<R>(p.xa, s, a, at);
        }
        each<R::PATHS>([&](auto number) {
            constexpr int I = decltype(number)::value, weight = R::PATH[I].weight;
            if constexpr (weight >= 0) {
                next.w[weight] = load_weights<R, I>(p.w, e, at);
                if constexpr (R::HAS_W) next.wc[weight] = load_weights<R, I>(p.wc, e, at);
            }
        });
    }
    MDCG_MEMBER Operands<R> take(int position, Long& e, Long& s) {
        const Operands<R> operands = next;
        e = next_e, s = next_s;
        next_e = later_e, next_s = later_s;
        if (position + 1 < end) fetch();
        if (position + 2 < end) edge_numbers<R>(p, position + 2, later_e, later_s);
        return operands;
    }
};

// Copies the operands of the next DEPTH - 1 edges to a ring in shared memory. Copies take no
// registers, so that enough bytes are in flight to fill the memory's bandwidth. A warp copies only
// what its own lanes read. Rows are whole 16-byte words.
template <typename R>
struct Prefetch<R, true> {
    static constexpr int WIDTH = 32 * R::CHANNELS;        // items of an operand
    static constexpr int LANES = WIDTH / QUAD;            // that copy an operand
    static constexpr int TOGETHER = 32 / LANES;           // operands per instruction
    static constexpr int W = 0, WC = W + R::NUM_WEIGHTS;  // first operand of each kind
    static constexpr int X = WC + R::HAS_W * R::NUM_WEIGHTS, XA = X + R::DIM;
    static constexpr int ENTRY = (XA + R::HAS_X * R::DIM) * WIDTH;  // items of one edge

    const Arguments& p;
    const Channels<R>& at;
    int begin, end;
    T* ring;
    int next_e = 0, next_s = 0, later_e = 0, later_s = 0;  // of the next edge, of the next to copy

    MDCG_MEMBER void start() {
#pragma unroll
        for (int k = 0; k < R::DEPTH - 1; ++k) {
            if (begin + k < end) {
                edge_numbers<R>(p, begin + k, later_e, later_s);
                copy(k, later_e, later_s);
            } else {
                copy_commit();
            }
        }
        if (begin + R::DEPTH - 1 < end) edge_numbers<R>(p, begin + R::DEPTH - 1, later_e, later_s);
        if (begin < end) edge_numbers<R>(p, begin, next_e, next_s);
    }
    // Starts copying an edge's rows to an entry of the ring.
    MDCG_MEMBER void copy(int entry, Long e, Long s) {
        T* const to = ring + entry * ENTRY + at.lane * QUAD;
        if constexpr (R::NUM_WEIGHTS > 0) {
            copy_operands<true, R::MUL>(to + W * WIDTH, p.w + e * R::WEIGHTS, R::WEIGHT_COLUMN);
            if constexpr (R::HAS_W)
                copy_operands<true, R::MUL>(to + WC * WIDTH, p.wc + e * R::WEIGHTS,
                                            R::WEIGHT_COLUMN);
        }
        copy_features(to + X * WIDTH, p.x + s * R::X_ROW);
        if constexpr (R::HAS_X) copy_features(to + XA * WIDTH, p.xa + s * R::X_ROW);
        copy_commit();
    }
    MDCG_MEMBER void copy_features(T* to, const T* row) {
        if constexpr (R::X_STRIDE == 1) {
            copy_operands<false, R::X_ITEMS>(to, row, R::X_START);
        } else {  // the components of a channel are neighbours
            constexpr int ITEMS = R::DIM * WIDTH;
#pragma unroll
            for (int first = 0; first < ITEMS; first += 32 * QUAD) {
                const int item = at.chunk * ITEMS + first + at.lane * QUAD;
                if (ITEMS - first >= 32 * QUAD || at.lane * QUAD < ITEMS - first)
                    copy_word<false, R::X_ITEMS * R::DIM, ITEMS>(to + first, row + R::X_START[0],
                                                                 item);
            }
        }
    }
    // Copies N operands of a row that begin at the given places; the row has ITEMS of each.
    template <bool ONCE, int ITEMS, int N>
    MDCG_MEMBER void copy_operands(T* to, const T* row, const int (&start)[N]) {
        const int channel = at.chunk * WIDTH + at.lane % LANES * QUAD, part = at.lane / LANES;
#pragma unroll
        for (int first = 0; first < N; first += TOGETHER) {
            const int count = min(TOGETHER, N - first);
            int place = start[first + count - 1];
#pragma unroll
            for (int j = count - 2; j >= 0; --j) place = part == j ? start[first + j] : place;
            if (count == TOGETHER || part < count)
                copy_word<ONCE, ITEMS, WIDTH>(to + first * WIDTH, row + place, channel);
        }
    }
    // Copies 16 bytes from an item on; zeros from ITEMS on, which the warps' WIDTHs may exceed.
    template <bool ONCE, int ITEMS, int WIDTH>
    MDCG_MEMBER void copy_word(T* to, const T* from, int item) {
        const bool there = ITEMS % WIDTH == 0 || item < ITEMS;
        if (ONCE)
            copy_once(to, from + (there ? item : 0), there ? 16 : 0);
        else
            copy_some(to, from + (there ? item : 0), there ? 16 : 0);
    }
    MDCG_MEMBER Operands<R> take(int position, Long& e, Long& s) {
        typedef Vec<R::CHANNELS> V;
        copy_wait<R::DEPTH - 2>();
        const int number = position - begin;
        const T* const from = ring + (number & (R::DEPTH - 1)) * ENTRY;
        const T* const vectors = from + at.lane * R::CHANNELS;
        Operands<R> operands;
#pragma unroll
        for (int i = 0; i < R::NUM_WEIGHTS; ++i) {
            operands.w[i] = *(const V*)(vectors + (W + i) * WIDTH);
            if constexpr (R::HAS_W) operands.wc[i] = *(const V*)(vectors + (WC + i) * WIDTH);
        }
#pragma unroll
        for (int a = 0; a < R::DIM; ++a) {
            operands.x[a] = take_features(from + X * WIDTH, a);
            if constexpr (R::HAS_X) operands.xa[a] = take_features(from + XA * WIDTH, a);
        }
        if (position + R::DEPTH - 1 < end)
            copy((number + R::DEPTH - 1) & (R::DEPTH - 1), later_e, later_s);
        else
            copy_commit();
        if (position + R::DEPTH < end) edge_numbers<R>(p, position + R::DEPTH, later_e, later_s);
        e = next_e, s = next_s;
        if (position + 1 < end) edge_numbers<R>(p, position + 1, next_e, next_s);
        return operands;
    }
    MDCG_MEMBER Vec<R::CHANNELS> take_features(const T* from, int a) {
        if constexpr (R::X_STRIDE == 1)
            return *(const Vec<R::CHANNELS>*)(from + a * WIDTH + at.lane * R::CHANNELS);
        return take_some<R::CHANNELS, R::DIM>(from + a + at.lane * (R::CHANNELS * R::DIM));
    }
};

// ---- results -----------------------------------------------------------------------------------

// Sets the sums of a row of outputs to zero, and loads the row's gradient.
template <typename R>
MDCG_INLINE void start_row(const Arguments& p, Long row, const Channels<R>& at,
                           ReceiverSums<R>& sums) {
    each<R::OUTPUTS>([&](auto number) {
        constexpr int C = decltype(number)::value;
        constexpr Output output = R::OUTPUT[C];
        sums.out[C] = {};
        if constexpr (R::PULLS)
            sums.g[C] = load_some<R::CHANNELS, output.stride>(
                p.g + row * R::OUT_ROW + output.start + at.u * output.stride, at.left);
    });
}

template <typename R>
MDCG_INLINE void store_row(const Arguments& p, Long row, const Channels<R>& at,
                           const ReceiverSums<R>& sums) {
    each<R::OUTPUTS>([&](auto number) {
        constexpr int C = decltype(number)::value;
        constexpr Output output = R::OUTPUT[C];
        T* const to = p.out + row * R::OUT_ROW + output.start + at.u * output.stride;
        if constexpr (output.shared)
            add_some<R::CHANNELS, output.stride>(to, sums.out[C], at.left);
        else
            store_some<R::CHANNELS, output.stride>(to, sums.out[C], at.left);
    });
}

// Writes the gradient of an edge's features: to its sender's packed row, or to its own.
template <typename R>
MDCG_INLINE void store_features(const Arguments& p, Long s, Long place, const Channels<R>& at,
                                const EdgeSums<R>& sums) {
#pragma unroll
    for (int a = 0; a < R::DIM; ++a) {
        T* const to = p.dx + (R::DETERMINISTIC && R::CONV ? place : s) * R::DX_ROW +
                      R::DX_START[a] + at.u * R::DX_STRIDE;
        if constexpr (R::CONV) {
            if (!at.inside) continue;
            if constexpr (R::DETERMINISTIC && !R::INPUT_SHARED)
                store_stream(to, sums.dx[a]);
            else
                add(to, sums.dx[a]);
        } else if constexpr (R::INPUT_SHARED) {
            add_some<R::CHANNELS, R::DX_STRIDE>(to, sums.dx[a], at.left);
        } else {
            store_some<R::CHANNELS, R::DX_STRIDE>(to, sums.dx[a], at.left);
        }
    }
}

template <typename R, int I>
MDCG_INLINE void store_weights(const Arguments& p, Long e, const Channels<R>& at,
                               Vec<R::CHANNELS> dw) {
    constexpr Path path = R::PATH[I];
    T* const to = p.dw + weight_place<R>(path, e, at);
    if constexpr (!has_weight_vectors<R>(path)) {
        store_some<R::CHANNELS, path.weight_stride>(to, dw, at.left);
    } else if (R::WHOLE || at.left > 0) {
        store_stream(to, dw);
    }
}

// Writes a block's sums of the gradients of weights that all edges share.
template <typename R>
MDCG_INLINE void store_shared_weights(const Arguments& p, Long row, const Channels<R>& at,
                                      const ReceiverSums<R>& sums) {
    each<R::PATHS>([&](auto number) {
        constexpr Path path = R::PATH[decltype(number)::value];
        if constexpr (path.weight >= 0) {
            T* const to = p.dw + weight_place<R>(path, 0, at);
            if constexpr (R::DETERMINISTIC)  // a row of sums per block
                store_some<R::CHANNELS, path.weight_stride>(to + row * R::WEIGHTS,
                                                            sums.dw[path.weight], at.left);
            else
                add_some<R::CHANNELS, path.weight_stride>(to, sums.dw[path.weight], at.left);
        }
    });
}

// Sums the lanes' gradients of attributes and writes them to the warp's part.
template <typename R>
MDCG_INLINE void store_attributes(EdgeSums<R>& sums, T* to, int lane) {
    each_lane_sum<R>(sums.dy, lane, [&](int item, T sum) { to[item] = sum; });
}

// Sums the warps' gradients of a batch's attributes in a fixed order.
template <typename R>
MDCG_INLINE void sum_attributes(const Arguments& p, const T* parts, int first, int count, int lane,
                                int warp) {
    for (int t = warp * 32 + lane; t < count * R::ATTRIBUTES; t += R::BLOCK_WARPS * 32) {
        const int k = t / R::ATTRIBUTES, b = t % R::ATTRIBUTES;
        T sum = 0;
#pragma unroll
        for (int w = 0; w < R::BLOCK_WARPS; ++w)
            sum += parts[(w * R::BATCH + k) * R::ATTRIBUTES + b];
        T* const to = p.dy + Long(R::CONV ? p.order[first + k] : first + k) * R::ATTRIBUTES + b;
        if (R::ATTRIBUTES_SHARED)  // other kernels add to it
            add(to, sum);
        else
            *to = sum;
    }
}

// ---- a task ------------------------------------------------------------------------------------

// Walks the edges from `begin` to `end` with one warp, for the channels of chunk number `chunk`.
template <typename R>
MDCG_INLINE void run_task(const Arguments& p, T* shared, Long row, int begin, int end, int lane,
                          int warp, int chunk) {
    const Channels<R> at{lane, chunk};
    ReceiverSums<R> sums = {};
    if constexpr (R::CONV) start_row<R>(p, row, at, sums);
    // [2][BATCH][STRIDE] nonzeros, the same for B, [2][WARPS][BATCH][ATTRIBUTES] gradients, rings
    constexpr int BUFFER = R::BATCH * R::STRIDE, PART = R::BLOCK_WARPS * R::BATCH * R::ATTRIBUTES;
    T* const parts = shared + (R::HAS_Y ? 4 : 2) * BUFFER;
    T* const ring = shared + R::RING_START + warp * R::RING_ITEMS;
    Prefetch<R> prefetch{p, at, begin, end, ring};
    prefetch.start();
    int buffer = 0;
    for (int first = begin; first < end; first += R::BATCH) {
        const int count = min(R::BATCH, end - first);
        T* const m_batch = shared + buffer * BUFFER;
        T* const b_batch = m_batch + 2 * BUFFER;
        if (lane < count) {
            const Long y = Long(R::CONV ? p.order[first + lane] : first + lane) * R::ATTRIBUTES;
            write_path_matrices<R>([&](int b) { return __ldg(p.y + y + b); },
                                   m_batch + lane * R::STRIDE, warp);
            if constexpr (R::HAS_Y)
                write_path_matrices<R>([&](int b) { return __ldg(p.yb + y + b); },
                                       b_batch + lane * R::STRIDE, warp);
        }
        sync_warps<R::BLOCK_WARPS * 32>();
        if (R::WANTS_Y && first > begin)
            sum_attributes<R>(p, parts + (buffer ^ 1) * PART, first - R::BATCH, R::BATCH, lane,
                              warp);
        T* const dy_batch = parts + buffer * PART + warp * (R::BATCH * R::ATTRIBUTES);
        for (int k = 0; k < count; ++k) {
            Long e, s;
            const Operands<R> edge = prefetch.take(first + k, e, s);
            EdgeSums<R> gradients = {};
            if constexpr (!R::CONV) start_row<R>(p, e, at, sums);
            each<R::PATHS>([&](auto number) {
                constexpr int I = number;
                constexpr Path path = R::PATH[I];
                constexpr int weight = path.weight < 0 ? 0 : path.weight;
                T m[whole_quads(path.num_nonzeros)], b[whole_quads(path.num_nonzeros)];
                load_nonzeros(m, m_batch + k * R::STRIDE + path.nonzero);
                if constexpr (R::HAS_Y) load_nonzeros(b, b_batch + k * R::STRIDE + path.nonzero);
                add_path<R, I>(edge.x, edge.xa, edge.w[weight], edge.wc[weight],
                               sums.g + path.output, m, b, sums.out + path.output, gradients.dx,
                               gradients.dy, [&](auto dw) {
                                   if constexpr (R::SHARED_WEIGHTS)
                                       sums.dw[weight] += dw;
                                   else
                                       store_weights<R, I>(p, e, at, dw);
                               });
            });
            if constexpr (R::WANTS_X) {
                const Long place = R::CONV && R::DETERMINISTIC ? p.place[first + k] : 0;
                store_features<R>(p, s, place, at, gradients);
            }
            if constexpr (R::WANTS_Y)
                store_attributes<R>(gradients, dy_batch + k * R::ATTRIBUTES + R::FIRST_ATTRIBUTE,
                                    lane);
            if constexpr (!R::CONV && R::SUMS) store_row<R>(p, e, at, sums);
        }
        buffer ^= 1;
    }
    if (R::WANTS_Y && begin < end) {
        sync_warps<R::BLOCK_WARPS * 32>();
        const int first = begin + (end - 1 - begin) / R::BATCH * R::BATCH;
        sum_attributes<R>(p, parts + (buffer ^ 1) * PART, first, end - first, lane, warp);
    }
    if constexpr (R::CONV && R::SUMS) store_row<R>(p, row, at, sums);
    if constexpr (R::WANTS_W && R::SHARED_WEIGHTS) store_shared_weights<R>(p, row, at, sums);
}

// Runs the task of this warp.
template <typename R, typename... Others>
MDCG_INLINE void choose_task(const Arguments& p, T* shared, Long row, int begin, int end, int lane,
                             int warp) {
    if (sizeof...(Others) == 0 || warp < R::FIRST_WARP + R::CHUNKS)
        run_task<R>(p, shared, row, begin, end, lane, warp, warp - R::FIRST_WARP);
    else if constexpr (sizeof...(Others) > 0)
        choose_task<Others...>(p, shared, row, begin, end, lane, warp);
}

// A kernel K, whose warps have these tasks.
template <typename K, typename... Tasks>
MDCG_INLINE void run_conv(const Arguments& p) {
    END_IDLE_LANES();
    extern __shared__ Quad shared_memory[];
    if (K::LETS_NEXT_START) let_next_start();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const shared = (T*)shared_memory;
    const Long row = blockIdx.x;
    const int begin = K::CONV ? p.row_ptr[row] : int(row * K::BATCH);
    const int end = K::CONV ? p.row_ptr[row + 1] : int(min(p.n_rows, Long(begin) + K::BATCH));
    if constexpr (K::WANTS_Y) {  // attributes that a task does not touch have no gradient
        constexpr int ITEMS = 2 * K::BLOCK_WARPS * K::BATCH * K::ATTRIBUTES;
        T* const parts = shared + (K::HAS_Y ? 4 : 2) * K::BATCH * K::STRIDE;
        for (int t = threadIdx.x; t < ITEMS; t += K::BLOCK_WARPS * 32) parts[t] = 0;
    }
    choose_task<Tasks...>(p, shared, row, begin, end, lane, warp);
    if (K::ENDS_AFTER_PREVIOUS) end_after_previous();
}
