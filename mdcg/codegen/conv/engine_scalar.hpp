// Exact weights of scalar features that few different rows send: rows of types.
//
// Edges of one receiver whose senders have the same row x are a group. With h the inputs of the
// last linear and M the nonzeros of an edge, sum_e (h_e @ w2)_u M_ec x_u = x_u ((sum_e M_ec h_e) @
// w2)_u: the product with w2 is taken once per group and component instead of once per edge, and
// likewise in the backward pass. MDCG_NONZEROS and MDCG_RATIO (components per weight) are set above
// this text.
namespace {

constexpr int NONZEROS = MDCG_NONZEROS, RATIO = MDCG_RATIO, GROUPS = EDGES / RATIO;

typedef T VU __attribute__((vector_size(MDCG_VECTOR_BYTES), aligned(sizeof(T)), may_alias));

struct Groups {
    int count;
    int start[GROUPS + 1];
    const T* x[GROUPS];
    const T* g[GROUPS];
    T* out[GROUPS];
};

constexpr int whole_tiles(int rows) { return (rows + TILE - 1) / TILE * TILE; }

// False where the groups are too small to be worth it.
static bool find_groups(const ConvBlock* b, int64_t x_width, int64_t out_width, Groups& groups) {
    const int n = (int)b->num_edges;
    int count = 0;
    for (int e = 0; e < n; ++e) {
        if (e && b->receiver[e] == b->receiver[e - 1] && b->sender[e] == b->sender[e - 1]) continue;
        if ((count + 1) * RATIO > n) return false;
        groups.start[count] = e;
        groups.x[count] = b->x + b->sender[e] * x_width;
        groups.g[count] = b->g + b->receiver[e] * out_width;
        groups.out[count++] = b->out + b->receiver[e] * out_width;
    }
    groups.start[count] = n;
    groups.count = count;
    return true;
}

constexpr int HN = HS / L % 2 == 0 ? 2 : 1;  // vectors of hidden values that take a step

// moments[group][NONZEROS][HS] = sum over the group's edges of M_ec h_e
static void sum_moments(const ConvBlock* b, const Groups& groups, const T* m, T* moments) {
    constexpr int REST = NONZEROS % TILE;
    for (int i = 0; i < groups.count; ++i) {
        const int first = groups.start[i], count = groups.start[i + 1] - first;
        const T* h = b->hidden + first * HS;
        T* to = moments + i * NONZEROS * HS;
        for (int v = 0; v < HS; v += HN * L) {
            for (int s = 0; s + TILE <= NONZEROS; s += TILE)
                product<TILE, HN, false>(count, m + s * EDGES + first, EDGES, 1, h + v, HS, L,
                                         to + s * HS + v, HS);
            if constexpr (REST != 0) {
                const int s = NONZEROS - REST;
                product<REST, HN, false>(count, m + s * EDGES + first, EDGES, 1, h + v, HS, L,
                                         to + s * HS + v, HS);
            }
        }
    }
}

// Moments of NUM nonzeros from `first` on, of all groups, as rows of a product.
template <int NUM>
static void take_moments(const Groups& groups, int first, const T* moments, T* rows) {
    for (int i = 0; i < groups.count; ++i)
        memcpy(rows + i * NUM * HS, moments + (i * NONZEROS + first) * HS, NUM * HS * sizeof(T));
    const int used = groups.count * NUM;
    zero(rows + used * HS, (whole_tiles(used) - used) * HS);
}

template <int NUM>
static void give_moments(const Groups& groups, int first, const T* rows, T* moments) {
    for (int i = 0; i < groups.count; ++i)
        memcpy(moments + (i * NONZEROS + first) * HS, rows + i * NUM * HS, NUM * HS * sizeof(T));
}

// out_c += x * weights of component c
template <int S, int U, int NUM>
static void scalar_forward(const ConvBlock* b, const Groups& groups, int from, int to,
                           int64_t column, const T* rows, T* w) {
    constexpr int CH = U * A;
    for (int u = 0; u < S; u += CH) {
        multiply_weights<U>(b, groups.count * NUM, rows, column + u, w);
        for (int i = 0; i < groups.count; ++i)
            for (int v = 0; v < CH; v += L) {
                const V x = load(groups.x[i] + from + u + v);
                for (int c = 0; c < NUM; ++c) {
                    T* o = groups.out[i] + to + c * S + u + v;
                    store(o, load(o) + x * load(w + (i * NUM + c) * CH + v));
                }
            }
    }
}

// Gradient of the moments: rows += (x * g_c) @ w2_t
template <int S, int U, int NUM>
static void scalar_backward(const ConvBlock* b, const Groups& groups, int from, int to,
                            int64_t column, T* rows, T* w) {
    constexpr int CH = U * A;
    const int used = groups.count * NUM;
    for (int u = 0; u < S; u += CH) {
        for (int i = 0; i < groups.count; ++i)
            for (int v = 0; v < CH; v += L) {
                const V x = load(groups.x[i] + from + u + v);
                for (int c = 0; c < NUM; ++c)
                    store(w + (i * NUM + c) * CH + v, x * load(groups.g[i] + to + c * S + u + v));
            }
        zero(w + used * CH, (whole_tiles(used) - used) * CH);
        hidden_gradient<U>(b, used, w, column + u, rows);
    }
}

// Gradients of the edges from those of the moments: d_h = sum_s M_s dA_s and p_s = dA_s . h. What
// is written past the end of a group belongs to the next one, which comes later.
static void spread_moments(const ConvBlock* b, const Groups& groups, const T* m, const T* moments,
                           T* p) {
    for (int i = 0; i < groups.count; ++i) {
        const T* from = moments + i * NONZEROS * HS;
        for (int e = groups.start[i]; e < groups.start[i + 1]; e += TILE)
            for (int v = 0; v < HS; v += HN * L) {
                T* to = b->d_hidden + e * HS + v;
                if (e + TILE <= EDGES)
                    product<TILE, HN, false>(NONZEROS, m + e, 1, EDGES, from + v, HS, L, to, HS);
                else
                    for (int r = 0; e + r < EDGES; ++r)
                        product<1, HN, false>(NONZEROS, m + e + r, 1, EDGES, from + v, HS, L,
                                              to + r * HS, HS);
            }
        for (int e = groups.start[i]; e < groups.start[i + 1]; e += L) {
            const int lanes = EDGES - e < L ? EDGES - e : L;
            for (int s = 0; s < NONZEROS; ++s) {
                V sums[L] = {};
                for (int k = 0; k < lanes; ++k) {
                    const T* h = b->hidden + (e + k) * HS;
                    V sum = {};
                    MDCG_UNROLL(8)
                    for (int v = 0; v < HS; v += L) sum += load(h + v) * load(from + s * HS + v);
                    sums[k] = sum;
                }
                const V found = lane_sums(sums);
                T* to = p + s * EDGES + e;
                if (lanes == L)
                    *(VU*)to = (VU)found;
                else
                    memcpy(to, &found, lanes * sizeof(T));
            }
        }
    }
    const int n = (int)b->num_edges;
    zero(b->d_hidden + n * HS, (EDGES - n) * HS);
}

}  // namespace
