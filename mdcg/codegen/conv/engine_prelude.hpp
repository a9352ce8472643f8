// Blocks of edges. T and MDCG_EDGES are set above this text.
#if defined(__AVX512F__) || defined(__aarch64__)
#define MDCG_REGISTERS 32
#else
#define MDCG_REGISTERS 16
#endif

#if defined(__clang__)
#define MDCG_UNROLL(n) _Pragma("clang loop unroll(full)")
#else
#define MDCG_PRAGMA(text) _Pragma(#text)
#define MDCG_UNROLL(n) MDCG_PRAGMA(GCC unroll n)
#endif

namespace {

constexpr int A = 64 / sizeof(T);  // items of a panel
constexpr int EDGES = MDCG_EDGES;

// One or two vectors that take the same step.
template <int N>
struct Pack;
template <>
struct Pack<1> {
    V a;
};
template <>
struct Pack<2> {
    V a, b;
};

template <int N>
MDCG_INLINE Pack<N> pack(const T* p) {
    if constexpr (N == 1) {
        return {load(p)};
    } else {
        return {load(p), load(p + L)};
    }
}
MDCG_INLINE void put(T* p, Pack<1> v) { store(p, v.a); }
MDCG_INLINE void put(T* p, Pack<2> v) {
    store(p, v.a);
    store(p + L, v.b);
}
MDCG_INLINE Pack<1> mul(Pack<1> x, Pack<1> y) { return {x.a * y.a}; }
MDCG_INLINE Pack<2> mul(Pack<2> x, Pack<2> y) { return {x.a * y.a, x.b * y.b}; }
// o += x * y and o -= x * y.
MDCG_INLINE void plus(Pack<1>& o, V s, Pack<1> x) { o.a += s * x.a; }
MDCG_INLINE void plus(Pack<2>& o, V s, Pack<2> x) {
    o.a += s * x.a;
    o.b += s * x.b;
}
MDCG_INLINE void minus(Pack<1>& o, V s, Pack<1> x) { o.a -= s * x.a; }
MDCG_INLINE void minus(Pack<2>& o, V s, Pack<2> x) {
    o.a -= s * x.a;
    o.b -= s * x.b;
}
template <int N>
MDCG_INLINE void add(T* p, Pack<N> v) {
    Pack<N> old = pack<N>(p);
    old.a += v.a;
    if constexpr (N == 2) old.b += v.b;
    put(p, old);
}

// Vectors of a chunk of U panels that take a step together, where `sums` of them are being summed.
template <int U>
constexpr int pack_of(int sums) {
    return U * A / L < 2 || (MDCG_REGISTERS == 16 && sums > 5) ? 1 : 2;
}

template <int... I>
struct Lanes {};
template <int N, int... I>
struct LanesUpTo : LanesUpTo<N - 1, N - 1, I...> {};
template <int... I>
struct LanesUpTo<0, I...> {
    typedef Lanes<I...> type;
};

// Lane l: from y where bit H of l is set, else from x; `swapped` takes lane l ^ H.
#if defined(__clang__) || __GNUC__ >= 12
template <int H, int... I>
MDCG_INLINE V blend(V x, V y, Lanes<I...>) {
    return __builtin_shufflevector(x, y, ((I & H) ? L + I : I)...);
}
template <int H, int... I>
MDCG_INLINE V swapped(V x, V y, Lanes<I...>) {
    return __builtin_shufflevector(x, y, ((I & H) ? L + (I ^ H) : (I ^ H))...);
}
#else
template <int BYTES>
struct Integer {
    typedef int32_t type;
};
template <>
struct Integer<8> {
    typedef int64_t type;
};
typedef Integer<sizeof(T)>::type Index __attribute__((vector_size(MDCG_VECTOR_BYTES)));
template <int H, int... I>
MDCG_INLINE V blend(V x, V y, Lanes<I...>) {
    return __builtin_shuffle(x, y, Index{((I & H) ? L + I : I)...});
}
template <int H, int... I>
MDCG_INLINE V swapped(V x, V y, Lanes<I...>) {
    return __builtin_shuffle(x, y, Index{((I & H) ? L + (I ^ H) : (I ^ H))...});
}
#endif

// Lane l of the result is the sum of all lanes of v[l].
template <int H = L / 2>
MDCG_INLINE V lane_sums(const V* v) {
    typedef typename LanesUpTo<L>::type All;
    V half[H];
    MDCG_UNROLL(16)
    for (int i = 0; i < H; ++i)
        half[i] = blend<H>(v[i], v[i + H], All{}) + swapped<H>(v[i], v[i + H], All{});
    if constexpr (H == 1) {
        return half[0];
    } else {
        return lane_sums<H / 2>(half);
    }
}

typedef mdcg::ConvBlock<T> ConvBlock;

// Rows of a block's edges; edges of one receiver are a run.
struct Edges {
    int count, runs;
    int run[EDGES + 1];
    T* out[EDGES];      // of a run
    const T* x[EDGES];  // of an edge
    const T* g[EDGES];
};

MDCG_INLINE void find_runs(const ConvBlock* b, int64_t x_width, int64_t out_width, Edges& edges) {
    const int n = (int)b->num_edges;
    edges.count = n;
    int runs = 0;
    for (int e = 0; e < n; ++e) {
        edges.x[e] = b->x + b->sender[e] * x_width;
        if (e == 0 || b->receiver[e] != b->receiver[e - 1]) {
            edges.run[runs] = e;
            edges.out[runs++] = b->out + b->receiver[e] * out_width;
        }
    }
    edges.run[runs] = n;
    edges.runs = runs;
}

MDCG_INLINE void find_rows(const ConvBlock* b, int64_t x_width, int64_t out_width, Edges& edges) {
    const int n = (int)b->num_edges;
    edges.count = n;
    for (int e = 0; e < n; ++e) {
        edges.x[e] = b->x + b->sender[e] * x_width;
        edges.g[e] = b->g + b->receiver[e] * out_width;
    }
}

MDCG_INLINE void zero(T* p, int items) { memset(p, 0, items * sizeof(T)); }

// dx rows of the senders += tile[edge][components][U * A]
template <int U, int DIM, int S>
static void add_rows(const ConvBlock* b, int64_t width, int64_t offset, const T* tile) {
    for (int e = 0; e < (int)b->num_edges; ++e) {
        T* row = b->dx + b->sender[e] * width + offset;
        for (int a = 0; a < DIM; ++a) MDCG_UNROLL(8)
        for (int v = 0; v < U * A; v += L)
            store(row + a * S + v, load(row + a * S + v) + load(tile + (e * DIM + a) * U * A + v));
    }
}

}  // namespace
