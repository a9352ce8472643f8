// After vectors.cuh, spherical_harmonics.cuh and table_column.cuh. Defined before are
// L_MAX, NORM (factors of harmonics), DEGREE of the table, BATCH and BACKWARD; for the backward
// pass PARTS (blocks that share the pairs of a group), PART_STRIDE (of sums over lanes), PLACE (row
// of the gradient of features of a pair, by its number) and STARTS_ROW (whether a pair has another
// row than the one before).

constexpr int QUAD = 16 / sizeof(T);
struct alignas(16) Quad {
    T v[QUAD];
};

// The address, but the compiler no longer knows how it was computed: it keeps it in a register and
// does not compute it again for every edge.
MDCG_INLINE const T* kept(const T* address) {
    asm("" : "+l"(address));
    __builtin_assume(__isGlobal(address));
    return address;
}

// Weights are polynomials. Items 2 k and 2 k + 1 of all columns stand together, behind them those
// of the next k.
typedef mdcg::TableColumn<DEGREE, T> Column;
struct alignas(2 * sizeof(T)) Two {
    T v[2];
};

// Of neighbouring channels.
template <int N>
struct alignas(N * sizeof(Two) < 16 ? N * sizeof(Two) : 16) Pairs {
    Two v[N];
};

// Evaluates the weight of channel c and its derivative at place z in the interval.
template <int N>
MDCG_INLINE void evaluate(const Pairs<N> (&a)[Column::PAIRS], int c, T z, T& value, T& slope) {
    Column::evaluate(z, [&](int i) { return a[i / 2].v[c].v[i % 2]; }, value, slope);
}

// What all warps must know of an edge, or of a pair of edges.
struct alignas(16) Record {
    int sender, row;  // rows of features and of the table
    T z;              // place in the interval
#if BACKWARD
    T slope;       // by how much z grows with length
    int to, edge;  // row of the features' gradient, and of the vector's
    int partner,
        local_receiver;  // sender of a pair (-1: the edge is alone); number of the group's receiver
    T u[3], inverse;     // direction, and 1 / length
#endif
};

// An edge on its way from memory, and the lane's edge of the next batch (-1: none yet).
struct PrefetchedEdge {
    int edge, next = -1, sender, receiver, node, type, to;
    T u[3];
    double length;
};

// Loads the lane's edge of a batch, number `number` of `count` from `begin`, and the index of that
// of the next batch, which is `step` edges further. `record`: this warp makes the records.
MDCG_INLINE void fetch(const Arguments& p, PrefetchedEdge& a, int begin, int number, int count,
                       int step, int lane, bool record) {
    if (lane >= BATCH || number >= count) return;
    a.edge = a.next >= 0 ? a.next : p.active[begin + number];
    if (number + step < count) a.next = p.active[begin + number + step];
#pragma unroll
    for (int d = 0; d < 3; ++d) a.u[d] = p.unit[3 * Long(a.edge) + d];
    if (!record) return;
    a.sender = p.sender[a.edge];
    a.type = p.sender_type[a.edge];
#if BACKWARD
    a.receiver = p.receiver[a.edge];
    a.node = p.node[a.edge];
    a.to = PLACE(begin + number);
#endif
    a.length = p.length[a.edge];
}

// `row`: of the receiver, or of the group of receivers.
MDCG_INLINE Record record_of(const Arguments& p, const PrefetchedEdge& a, Long row) {
    const Long receiver = BACKWARD ? a.receiver : row;
    const mdcg::TableEntry found = p.places[Long(p.types[receiver]) * p.n_types + a.type];
    const double root = sqrt(a.length);
    const double place = (root - found.first) * found.inverse_step;
    const bool within = place < found.intervals;  // of the cutoff of its types; row 0 is zeros
    const int i = within ? int(place) : 0;
    Record r;
    r.sender = a.sender;
    r.row = within ? found.row + i : 0;
    r.z = within ? T(2 * (place - i) - 1) : T(0);
#if BACKWARD
    r.slope = T(found.inverse_step) / T(root);
    r.to = a.to;
    r.edge = a.edge;
    const bool pair = *p.one_way == 0 && a.node < p.n_local && a.node != receiver;
    r.partner = pair ? a.node : -1;
    r.local_receiver = int(receiver - p.n_first - row * p.n_group);
#pragma unroll
    for (int k = 0; k < 3; ++k) r.u[k] = a.u[k];
    r.inverse = T(1) / T(a.length);
#endif
    return r;
}

// Writes the records of a batch; the first lanes have an edge (`there`). In the forward pass the
// loop over edges takes EDGES of them in an iteration. A record then has the place of its own edge,
// the row of the next edge, and the sender of the edge after EDGES, which are loaded ahead; behind
// the last edge, its own. The first row and the first senders stand behind the records.
template <int EDGES>
MDCG_INLINE void write_records(Record* records, Record own, bool there, int lane) {
#if !BACKWARD
    const int last = max(__popc(__ballot_sync(~0u, there)) - 1, 0);
    const auto of_edge = [&](int value, int edge) {
        return __shfl_sync(~0u, value, min(edge, last));
    };
    Record first = own;
    first.sender = of_edge(own.sender, lane);
    if (lane < EDGES) records[BATCH + lane] = first;
    own.sender = of_edge(own.sender, lane + EDGES);
    own.row = of_edge(own.row, lane + 1);
#endif
    if (there) records[lane] = own;
}

#if BACKWARD

// Receivers of a group.
MDCG_INLINE int group_size(const Arguments& p, Long group) {
    const Long left = p.n_local - p.n_first - group * p.n_group;
    return int(left < p.n_group ? left : p.n_group);
}

// The pairs that the warps of a share of the block take one after the other: those of the share to
// which the lane belongs when a batch is made. Batches have as many pairs of each share.
struct EdgeSlice {
    int begin;
    int count, longest;  // of this share, and of all of the block
};

// Where part `q` of `all` of the active pairs begins: never between two pairs that write one row.
MDCG_INLINE int part_begin(const Arguments& p, int begin, int active, int q, int all, int lane) {
    if (q <= 0 || q >= all) return q <= 0 ? 0 : active;
    for (int at = int(Long(active) * q / all);; at += 32) {
        const int k = at + lane;
        bool starts = k >= active || k == 0;
        if (!starts) starts = STARTS_ROW(begin + k);
        const unsigned found = __ballot_sync(~0u, starts);
        if (found) return min(at + __ffs(found) - 1, active);
    }
}

// Part `part` of `parts`, divided into SHARES shares.
template <int SHARES>
MDCG_INLINE EdgeSlice share_of(const Arguments& p, Long group, int part, int parts, int lane) {
    constexpr int PER = BATCH / SHARES;
    const int begin = p.row_ptr[group * p.n_group];
    const int active = p.num_active[group];
    EdgeSlice mine{begin, 0, 0};
    int start = part_begin(p, begin, active, part * SHARES, parts * SHARES, lane);
    for (int s = 0; s < SHARES; ++s) {
        const int end = part_begin(p, begin, active, part * SHARES + s + 1, parts * SHARES, lane);
        if (lane / PER == s) mine.begin = begin + start, mine.count = end - start;
        mine.longest = max(mine.longest, end - start);
        start = end;
    }
    return mine;
}

// Sums the warps' gradients of the lane's pair, in their order, and adds those of the vector of its
// edge to `de`. A kernel adds to an edge once, so that sums are reproducible; they are atomic only
// so that no thread waits for the old value. A row of `parts` holds the harmonics' gradients; in
// place of the constant one's, which is without meaning, that of the length.
template <int WARPS>
MDCG_INLINE void to_vectors(const Arguments& p, T* de, const T* parts, const Record* records,
                            int lane) {
    constexpr int ROW = (L_MAX + 1) * (L_MAX + 1);
    if (lane >= BATCH) return;
    T d[ROW];
#pragma unroll
    for (int b = 0; b < ROW; ++b) d[b] = parts[lane * PART_STRIDE + b];
    for (int w = 1; w < WARPS; ++w)
#pragma unroll
        for (int b = 0; b < ROW; ++b) d[b] += parts[(w * BATCH + lane) * PART_STRIDE + b];
    const Record& r = records[lane];
    T g[3];
    constexpr T factors[] = NORM;
    harmonics_gradient(factors, r.u, d, g);
    const T along = d[0] - (g[0] * r.u[0] + g[1] * r.u[1] + g[2] * r.u[2]) * r.inverse;
    T* const to = de + 3 * Long(r.edge);
    const T sign = p.n_flip ? T(-1) : T(1);
#pragma unroll
    for (int k = 0; k < 3; ++k) atomicAdd(to + k, sign * (along * r.u[k] + g[k] * r.inverse));
}

#endif
