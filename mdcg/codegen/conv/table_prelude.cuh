// After spherical_harmonics.cuh and table_entry.hpp. T is float or double. Defined before are
// L_MAX, NORM (factors of harmonics), DEGREE of the table, BATCH, BACKWARD and PLACE
// (row of the gradient of features that belongs to an edge).

typedef long long Long;
#define MDCG_INLINE static __device__ __forceinline__

constexpr int QUAD = 16 / sizeof(T);
struct alignas(16) Quad {
    T v[QUAD];
};

// Weights are polynomials of z in [-1, 1], of an odd degree: factors of z^(2 k) and z^(2 k + 1) of
// all columns stand together, behind them those of the next k.
constexpr int HALF = (DEGREE + 1) / 2;
struct alignas(2 * sizeof(T)) Two {
    T v[2];
};

// Where an edge stands in its interval.
struct IntervalPoint {
    T z, multiple[DEGREE];  // z (k + 1) / k, for derivatives
    __device__ __forceinline__ explicit IntervalPoint(T z) : z(z) {
#pragma unroll
        for (int k = 1; k < DEGREE; ++k) multiple[k] = z * (T(k + 1) / T(k));
    }
    __device__ __forceinline__ T value(const Two (&a)[HALF]) const {
        T found = a[HALF - 1].v[1];
#pragma unroll
        for (int k = DEGREE - 1; k >= 0; --k) found = a[k / 2].v[k % 2] + z * found;
        return found;
    }
    __device__ __forceinline__ T slope(const Two (&a)[HALF]) const {
        T found = a[HALF - 1].v[1];
#pragma unroll
        for (int k = DEGREE - 1; k >= 1; --k) found = a[k / 2].v[k % 2] + multiple[k] * found;
        return found;
    }
};

// What all warps must know of an edge.
struct alignas(16) Record {
    int sender, row, to, padding;  // rows of features, of the table, and of their gradients
    T z, slope;                    // place in the interval, and by how much it grows with length
};

// An edge on its way from memory; `record` where this warp makes the records.
struct Ahead {
    int edge, sender, type;
    T u[3];
    double length;
};

MDCG_INLINE void fetch(const Arguments& p, Ahead& a, Long begin, int number, int count,
                       bool record) {
    if (number >= count) return;
    a.edge = p.live[begin + number];
#pragma unroll
    for (int d = 0; d < 3; ++d) a.u[d] = p.unit[3 * Long(a.edge) + d];
    if (!record) return;
    a.sender = p.sender[a.edge];
    a.type = p.sender_type[a.edge];
    a.length = p.length[a.edge];
}

MDCG_INLINE Record record_of(const Arguments& p, const Ahead& a, Long row, int to) {
    const mdcg::TableEntry found = p.places[Long(p.types[row]) * p.n_types + a.type];
    const double root = sqrt(a.length);
    const double place = (root - found.first) * found.inverse_step;
    if (place < 0) *p.short_edges = 1;            // the caller evaluates again without tables
    const bool within = place < found.intervals;  // of the cutoff of its types; row 0 is zeros
    const int i = within && place > 0 ? int(place) : 0;
    Record r;
    r.sender = a.sender;
    r.row = within ? found.row + i : 0;
    r.to = to;
    r.padding = 0;
    r.z = within ? T(2 * (place - i) - 1) : T(0);
    r.slope = T(found.inverse_step / root);
    return r;
}

#if BACKWARD

// Sums the warps' gradients of a batch, in their order, and adds those of the edges' vectors to
// `de`. A row of `parts` holds the harmonics'; in place of the constant one's, which is without
// meaning, that of the length.
template <int WARPS>
MDCG_INLINE void to_vectors(const Arguments& p, T* de, const T* parts, Long begin, int first,
                            int count, int lane) {
    constexpr int ROW = (L_MAX + 1) * (L_MAX + 1);
    if (lane >= BATCH || first + lane >= count) return;
    const Long edge = p.live[begin + first + lane];
    T d[ROW];
#pragma unroll
    for (int b = 0; b < ROW; ++b) d[b] = parts[lane * ROW + b];
    for (int w = 1; w < WARPS; ++w)
#pragma unroll
        for (int b = 0; b < ROW; ++b) d[b] += parts[(w * BATCH + lane) * ROW + b];
    T u[3], g[3];
#pragma unroll
    for (int k = 0; k < 3; ++k) u[k] = p.unit[3 * edge + k];
    constexpr T factors[] = NORM;
    harmonics_gradient(factors, u, d, g);
    const T inverse = T(1.0 / p.length[edge]);
    const T along = d[0] - (g[0] * u[0] + g[1] * u[1] + g[2] * u[2]) * inverse;
    T* const to = de + 3 * edge;
    const T sign = p.n_flip ? T(-1) : T(1);
#pragma unroll
    for (int k = 0; k < 3; ++k) to[k] += sign * (along * u[k] + g[k] * inverse);
}

#endif
