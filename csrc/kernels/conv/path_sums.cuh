// Messages and gradients of one path of mode uvu for one edge, in the channels of a lane.
#pragma once
#include "kernels/conv/path_matrices.cuh"
#include "kernels/warp_sums.cuh"

// Where component c of the task's outputs lies in a row: channel u at start + u * stride.
struct Output {
    int start, stride;
    bool shared;  // other tasks add to it
};

// Adds coefficient * the gradient of a nonzero to the gradient of an attribute. Attributes are
// counted from FIRST_ATTRIBUTE.
struct AttributeTerm {
    short nonzero, attribute;
    T coefficient;
};

// A path of the task. Its outputs begin with component `output`, its nonzeros at `nonzero` in an
// edge's row. Its weights begin at `weight`; -1: it has none.
struct Path {
    short output, dim_out, nonzero, num_nonzeros;
    short first_entry, end_entry;  // range of ENTRY
    short first_term, end_term;    // of ATTRIBUTE_TERM: gradients of attributes from nonzeros'
    int weight, weight_stride;     // distance of the weights of two channels
};

// Adds the gradients of a path's nonzeros to the gradients of attributes: terms FIRST to END, which
// are sorted by attribute.
template <typename R, int FIRST, int END>
MDCG_INLINE void add_attributes(const T* nonzeros, T* attributes) {
    T sum = 0;
    each_between<FIRST, END>([&](auto position) {
        constexpr int K = decltype(position)::value;
        constexpr AttributeTerm term = R::ATTRIBUTE_TERM[K];
        constexpr bool BEGINS =
            K == FIRST || R::ATTRIBUTE_TERM[K - (K > FIRST)].attribute != term.attribute;
        constexpr bool ENDS =
            K + 1 == END || R::ATTRIBUTE_TERM[K + (K + 1 < END)].attribute != term.attribute;
        const T product = term.coefficient * nonzeros[term.nonzero];
        sum = BEGINS ? product : sum + product;
        if (ENDS) attributes[term.attribute] += sum;
    });
}

// Sums gradients of attributes over the lanes of a warp, 32 at a time, and calls body(item, sum) in
// one lane each.
template <typename R, typename Body>
MDCG_INLINE void each_lane_sum(T* dy, int lane, const Body& body) {
    each<(R::NUM_ATTRIBUTES + 31) / 32>([&](auto number) {
        constexpr int FIRST = 32 * number;
        constexpr int COUNT = R::NUM_ATTRIBUTES - FIRST < 32 ? R::NUM_ATTRIBUTES - FIRST : 32;
        constexpr int SIZE = FIRST + 32 < R::DY_ITEMS ? 32 : R::DY_ITEMS - FIRST;
        constexpr int LANES = 32 / SIZE;
        const T sum = reduce(*(T(*)[SIZE])(dy + FIRST), lane);
        if (lane % LANES == 0 && lane < COUNT * LANES) body(FIRST + lane / LANES, sum);
    });
}

// Adds the contributions of path I to the outputs of an edge and to the gradients of its features
// and attributes; calls store_weight with the gradient of the weight. The path matrix M has the
// nonzeros m. B is the path matrix of the cotangent of y and has the nonzeros b. w is the weight;
// xa and wc are the cotangents of x and w. The output without cotangents is
//
//     out = M (w x);  with them, in double backward passes, out = M (w xa + wc x) + B (w x).
//
// Gradients are those of <g, out>.
template <typename R, int I, typename V, typename StoreWeight>
MDCG_INLINE void add_path(const V* x, const V* xa, V w, V wc, const V* g, const T* m, const T* b,
                          V* out, V* dx, T* dy, const StoreWeight& store_weight) {
    constexpr Path path = R::PATH[I];
    constexpr bool WEIGHTED = path.weight >= 0, HAS_W = R::HAS_W && WEIGHTED;
    const auto weighted = [&](V value) { return WEIGHTED ? w * value : value; };
    V s[R::DIM] = {}, r[R::DIM];  // what M and B multiply
#pragma unroll
    for (int a = 0; a < R::DIM; ++a) {
        r[a] = weighted(x[a]);
        if constexpr (!R::DOUBLE) s[a] = r[a];
        if constexpr (R::HAS_X) s[a] = weighted(xa[a]);
        if constexpr (HAS_W && R::HAS_X) s[a] += wc * x[a];
        if constexpr (HAS_W && !R::HAS_X) s[a] = wc * x[a];
    }
    constexpr bool USES_S = !R::DOUBLE || R::HAS_X || HAS_W;

    if constexpr (R::SUMS) {
        // the message first: adding each product to the large total would lose digits
        V message[path.dim_out] = {};
        each_between<path.first_entry, path.end_entry>([&](auto position) {
            constexpr Entry entry = R::ENTRY[position];
            const T value = entry.sign > 0 ? m[entry.nonzero] : -m[entry.nonzero];
            if constexpr (USES_S) message[entry.c] += value * s[entry.a];
        });
        if constexpr (R::HAS_Y) {
            each_between<path.first_entry, path.end_entry>([&](auto position) {
                constexpr Entry entry = R::ENTRY[position];
                const T value = entry.sign > 0 ? b[entry.nonzero] : -b[entry.nonzero];
                message[entry.c] += value * r[entry.a];
            });
        }
#pragma unroll
        for (int c = 0; c < path.dim_out; ++c) out[c] += message[c];
    }
    if constexpr (R::PULLS) {
        V q[R::DIM] = {}, h[R::DIM] = {}, dw = {};  // q, h: g pulled back by M and by B
        each_between<path.first_entry, path.end_entry>([&](auto position) {
            constexpr Entry entry = R::ENTRY[position];
            q[entry.a] += (entry.sign > 0 ? m[entry.nonzero] : -m[entry.nonzero]) * g[entry.c];
            if constexpr (R::HAS_Y)
                h[entry.a] += (entry.sign > 0 ? b[entry.nonzero] : -b[entry.nonzero]) * g[entry.c];
        });
#pragma unroll
        for (int a = 0; a < R::DIM; ++a) {
            V d = {};
            if constexpr (!R::DOUBLE) d = weighted(q[a]), dw += x[a] * q[a];
            if constexpr (HAS_W) d = wc * q[a];
            if constexpr (R::HAS_X) dw += xa[a] * q[a];
            if constexpr (R::HAS_Y) d += weighted(h[a]), dw += x[a] * h[a];
            if constexpr (R::WANTS_X) dx[a] += d;
        }
        if constexpr (R::WANTS_W && WEIGHTED) store_weight(dw);
        if constexpr (R::WANTS_Y && USES_S && path.num_nonzeros > 0) {
            // NOTES: in a loop of its own, which takes fewer registers than one loop for all sums
            V dm[path.num_nonzeros] = {};
            each_between<path.first_entry, path.end_entry>([&](auto position) {
                constexpr Entry entry = R::ENTRY[position];
                dm[entry.nonzero] += (entry.sign > 0 ? s[entry.a] : -s[entry.a]) * g[entry.c];
            });
            T totals[path.num_nonzeros];
#pragma unroll
            for (int n = 0; n < path.num_nonzeros; ++n) totals[n] = total(dm[n]);
            add_attributes<R, path.first_term, path.end_term>(totals, dy);
        }
    }
}
