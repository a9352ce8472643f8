#include "kernels/harmonic_functions.cuh"
#include "kernels/type_sums.hpp"
// needs table_entry.hpp, which type_sums.hpp includes
#include "kernels/table_column.cuh"

// Sums over the edges of a receiver by type of the sender, for convolutions that depend on nothing
// else of the sender:
//     sums[lm][type][unit] = sum of h_unit(length) Y_lm(direction),
// and the gradients of edge vectors from the gradients of the sums. A warp takes a receiver and
// sorts some of its edges by type in shared memory. If `parts` > 1, several warps share a receiver:
// forward they take different types and units, in the gradient different edges. In type_sums_shared
// the warps of a block share the edges of a receiver. The order of additions depends on the list
// alone, so that results are reproducible.
//
// Defined before:
//     L_MAX            and what else harmonic_functions.cuh needs
//     UNITS            items of a row of hidden units
//     DEGREE           of the polynomials of their table: odd
//     EACH             hidden units of a lane: a warp takes 32 EACH units at a time
//     LANES, OWN       in the gradient: lanes that share an edge, and units per lane
//     GRADIENT_BLOCKS  blocks of the gradient that a multiprocessor must have registers for
//     MAX_TYPES        largest number of types of senders in a list
constexpr int WARPS = TYPE_SUM_THREADS / 32;
constexpr int COLUMNS = WIDTH <= 4 ? 4 : WIDTH <= 16 ? 16 : 32;  // harmonics, zeros at the end
constexpr int QUADS = COLUMNS / 4, PITCH = QUADS | 1;            // odd: no bank conflicts
constexpr int BYTES = sizeof(T) * COLUMNS;                      // bytes of the harmonics of an edge
constexpr int CHUNKS = BYTES <= 64 ? 3 : BYTES <= 128 ? 2 : 1;  // edges of a lane at a time
constexpr unsigned ALL = 0xffffffffu;

// Neighbouring items, loaded with few instructions.
template <int N>
struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) Items {
    T v[N];
};
typedef Items<4> Quad;

// Where the table has the hidden units of an edge: its row, and the position within the interval.
struct alignas(2 * sizeof(T)) TablePosition {
    T place;
    int row;
};

struct Edge {
    int id, type;  // type -1: no edge
    TablePosition position;
    T by_length;  // derivative of position.place
};

INLINE Edge look_at(const TypeSumArguments<T>& p, int receiver, int number, int end) {
    Edge e{0, -1, {T(0), 0}, T(0)};
    if (number >= end) return e;
    e.id = p.active[number];
    const int type = p.sender_type[e.id];
    e.type = p.number[type];
    const double root = sqrt(p.length[e.id]);
    const TableEntry found = p.places[Long(p.receiver_types[receiver]) * p.num_types + type];
    const double place = root * found.inverse_step + found.offset;
    const int i = int(place);
    if (place >= found.intervals) e.type = -1;  // not shorter than the r_max of its types
    e.position = {T(2 * (place - i) - 1), found.row + i};
    e.by_length = T(found.inverse_step / root);
    return e;
}

// Edges of a receiver that a warp takes at a time, sorted by type.
struct Tile {
    static constexpr int EDGES = 32 * CHUNKS;
    Quad harmonics[EDGES * PITCH];
    TablePosition position[EDGES];
    T by_length[EDGES];
    int id[EDGES];
    int first[MAX_TYPES + 1];

    // Fills the tile with the edges of p.active from `begin` on.
    INLINE void fill(const TypeSumArguments<T>& p, int receiver, int begin, int end) {
        const int lane = threadIdx.x % 32;
        Edge edge[CHUNKS];
        int at[CHUNKS], before = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) edge[c] = look_at(p, receiver, begin + 32 * c + lane, end);
        for (int type = 0; type < p.num_present; ++type) {
            if (lane == 0) first[type] = before;
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const unsigned same = __ballot_sync(ALL, edge[c].type == type);
                if (edge[c].type == type) at[c] = before + __popc(same & ((1u << lane) - 1));
                before += __popc(same);
            }
        }
        if (lane == 0) first[p.num_present] = before;
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            if (edge[c].type < 0) continue;
            position[at[c]] = edge[c].position;
            by_length[at[c]] = edge[c].by_length;
            id[at[c]] = edge[c].id;
            T y[COLUMNS] = {};
            harmonics_of(p.factors, p.unit + 3 * Long(edge[c].id), y);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                const Quad four = {{y[4 * q], y[4 * q + 1], y[4 * q + 2], y[4 * q + 3]}};
                harmonics[at[c] * PITCH + q] = four;
            }
        }
        __syncwarp();
    }
};

// The polynomials of COUNT hidden units of an edge, which a lane takes in packs of neighbours. OF
// lanes share a row and take neighbouring packs.
template <int COUNT, int OF>
struct Units {
    static constexpr int PACK = COUNT < 2 ? 1 : 2, PACKS = COUNT / PACK;
    static_assert(UNITS % PACK == 0, "rows of units are padded");
    typedef Items<PACK> Some;
    static INLINE bool there(int unit, int pack) { return unit + pack * PACK * OF < UNITS; }
    typedef TableColumn<DEGREE, T> Column;
    static constexpr int HALF = Column::PAIRS, ROW = HALF * UNITS;
    INLINE T value(int j, T& slope) const {
        T value;
        Column::evaluate(
            place, [&](int i) { return a[i / 2][j / PACK].v[j % PACK * 2 + i % 2]; }, value, slope);
        return value;
    }
    typedef Items<2 * PACK> Loaded;
    Loaded a[HALF][PACKS] = {};
    T place = 0;

    // Packs beyond the end of the row are replaced by its first one, whose results are not used.
    INLINE void load(const TypeSumArguments<T>& p, const TablePosition& position, int unit) {
        const T* const row = (const T*)p.table + (Long(position.row) * ROW + unit) * 2;
        place = position.place;
#pragma unroll
        for (int i = 0; i < PACKS; ++i) {
            const int at = UNITS % (COUNT * OF) == 0 || there(unit, i) ? i * PACK * OF : -unit;
#pragma unroll
            for (int k = 0; k < HALF; ++k) a[k][i] = *(const Loaded*)(row + (k * UNITS + at) * 2);
        }
    }
};

// A task is 32 EACH units of a type. Part k of a receiver takes tasks k, k + parts, k + 2 parts and
// so on. If SHARE warps, which are all of a block, share the edges of a receiver, the first one
// adds the sums of the others.
template <int SHARE>
INLINE void add_edges(const TypeSumArguments<T>& p) {
    static_assert(SHARE == 1 || SHARE == WARPS, "warps of a block wait for each other");
    constexpr int GROUP = 32 * EACH, GROUPS = (UNITS + GROUP - 1) / GROUP;
    constexpr int AHEAD = 16 / sizeof(T) / EACH;  // edges whose units are loaded ahead
    typedef Units<EACH, 32> Hidden;
    typedef typename Hidden::Some Some;
    __shared__ Tile tiles[WARPS];
    __shared__ Some others[SHARE == 1 ? 1 : (SHARE - 1) * WIDTH * 32];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const unsigned number = (blockIdx.x * WARPS + warp) / SHARE;
    const int row = number / unsigned(p.parts), part = number - row * p.parts;
    if (row >= p.receivers) return;
    Tile& tile = tiles[warp];
    const int receiver = p.first_receiver + row, active = p.num_active[receiver];
    const int share = (active + SHARE - 1) / SHARE, first = share * (warp % SHARE);
    const int begin = p.row_ptr[receiver] + first;
    const int end = p.row_ptr[receiver] + min(first + share, active);
    T* const sums = p.sums + Long(row) * WIDTH * p.num_present * UNITS;
    int done = 0;
    do {  // at least once: sums are zeros where there are no edges
        tile.fill(p, receiver, begin + done, end);
        for (int task = part; task < p.num_present * GROUPS; task += p.parts) {
            const int type = task / GROUPS, unit = task % GROUPS * GROUP + lane * EACH;
            const int stop = tile.first[type + 1];
            int e = tile.first[type];
            Some total[WIDTH] = {};
            Hidden next[AHEAD];
            const auto load = [&](int first) {  // beyond the end, the last edge again
#pragma unroll
                for (int i = 0; i < AHEAD; ++i)
                    next[i].load(p, tile.position[min(first + i, stop - 1)], unit);
            };
            const auto values = [&](int i) {
                Some h;
                T slope;
#pragma unroll
                for (int j = 0; j < EACH; ++j) h.v[j] = next[i].value(j, slope);
                return h;
            };
            const auto add = [&](int at, const Some& h) {
#pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    const Quad y = tile.harmonics[at * PITCH + q];
#pragma unroll
                    for (int k = 0; k < 4; ++k)
#pragma unroll
                        for (int j = 0; j < EACH; ++j)
                            if (4 * q + k < WIDTH) total[4 * q + k].v[j] += h.v[j] * y.v[k];
                }
            };
            if (e < stop) load(e);
            for (; e + AHEAD - 1 < stop; e += AHEAD) {
                Some h[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) h[i] = values(i);
                load(e + AHEAD);
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) add(e + i, h[i]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD - 1; ++i, ++e)
                if (e < stop) add(e, values(i));
            if constexpr (SHARE > 1) {
                if (warp > 0) {
#pragma unroll
                    for (int lm = 0; lm < WIDTH; ++lm)
                        others[((warp - 1) * WIDTH + lm) * 32 + lane] = total[lm];
                }
                __syncthreads();
                if (warp == 0) {
#pragma unroll
                    for (int i = 0; i < (SHARE - 1) * WIDTH; ++i)
#pragma unroll
                        for (int j = 0; j < EACH; ++j)
                            total[i % WIDTH].v[j] += others[i * 32 + lane].v[j];
                }
                __syncthreads();
                if (warp > 0) continue;
            }
            if (unit >= UNITS) continue;
#pragma unroll
            for (int lm = 0; lm < WIDTH; ++lm) {
                Some* const to = (Some*)(sums + (Long(lm) * p.num_present + type) * UNITS + unit);
#pragma unroll
                for (int j = 0; j < EACH; ++j)
                    if (done > 0) total[lm].v[j] += to->v[j];
                *to = total[lm];
            }
        }
        __syncwarp();
        done += Tile::EDGES;
    } while (done < share);
}

extern "C" __global__ void __launch_bounds__(TYPE_SUM_THREADS)
    type_sums(const TypeSumArguments<T> p) {
    add_edges<1>(p);
}

extern "C" __global__ void __launch_bounds__(TYPE_SUM_THREADS)
    type_sums_shared(const TypeSumArguments<T> p) {
    add_edges<WARPS>(p);
}

// Adds halves of columns and of lanes until one column is left. NOTES: sizes are template
// arguments, since the compiler keeps arrays in registers only where it knows every index.
template <int HALF, int BIT>
INLINE void add_halves(T (&sum)[COLUMNS], int lane) {
    if constexpr (HALF >= 4) {
#pragma unroll
        for (int i = 0; i < HALF; ++i) sum[i] += __shfl_xor_sync(ALL, sum[i + HALF], BIT);
    } else if constexpr (HALF >= 1) {
        const bool upper = lane & BIT;
#pragma unroll
        for (int i = 0; i < HALF; ++i) {
            const T sent = upper ? sum[i] : sum[i + HALF];
            const T kept = upper ? sum[i + HALF] : sum[i];
            sum[i] = kept + __shfl_xor_sync(ALL, sent, BIT);
        }
    } else {
        sum[0] += __shfl_xor_sync(ALL, sum[0], BIT);
    }
    if constexpr (BIT > 1) add_halves<HALF / 2, BIT / 2>(sum, lane);
}

// Sums over LANES lanes. sum[i] belongs to column i ^ (4 * swap) with swap = lane /
// (4 * LANES / COLUMNS). Lane c * (LANES / COLUMNS) returns the sum of column c.
INLINE T sum_columns(T (&sum)[COLUMNS], int lane) {
    add_halves<COLUMNS / 2, LANES / 2>(sum, lane);
    return sum[0];
}

// Adds to edge_gradient, from the gradients of the sums in `sums`. A warp takes 32 / LANES edges of
// one type at once.
extern "C" __global__ void __launch_bounds__(TYPE_SUM_THREADS, GRADIENT_BLOCKS)
    type_sums_gradient(const TypeSumArguments<T> p) {
    constexpr int GROUP = OWN * LANES, AT_ONCE = 32 / LANES;
    typedef Units<OWN, LANES> Hidden;
    typedef typename Hidden::Some Some;
    static_assert(COLUMNS <= LANES, "a lane returns the sum of one column");
    // Gradients of the harmonics; column 0, whose harmonic is constant, holds the gradient of the
    // length. They overwrite the harmonics if one group covers all units.
    constexpr bool IN_PLACE = UNITS <= GROUP;
    constexpr int RESULT = IN_PLACE ? 4 * PITCH : COLUMNS + 1;
    __shared__ Tile tiles[WARPS];
    __shared__ T apart[IN_PLACE ? 1 : WARPS * Tile::EDGES * RESULT];
    const int lane = threadIdx.x % LANES, slot = threadIdx.x % 32 / LANES, warp = warp_of_block();
    const int swap = lane / (4 * LANES / COLUMNS);
    const unsigned number = blockIdx.x * WARPS + warp;
    const int row = number / unsigned(p.parts), part = number - row * p.parts;
    if (row >= p.receivers) return;
    Tile& tile = tiles[warp];
    T* const gradients = IN_PLACE ? (T*)tile.harmonics : apart + warp * Tile::EDGES * RESULT;
    const int receiver = p.first_receiver + row, first = p.row_ptr[receiver];
    const int active = p.num_active[receiver];
    const int last = first + int(Long(active) * (part + 1) / p.parts);
    const T* const sums = p.sums + Long(row) * WIDTH * p.num_present * UNITS;
    const Quad* harmonics[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) harmonics[q] = tile.harmonics + (q ^ swap);
    for (int from = first + int(Long(active) * part / p.parts); from < last; from += Tile::EDGES) {
        tile.fill(p, receiver, from, last);
        const int end = tile.first[p.num_present];
        for (int group = 0; group < UNITS; group += GROUP) {
            const int unit = group + lane * Hidden::PACK;
            Hidden next;
            // Beyond the last edge, lanes load the last one again, and their results are not kept.
            const auto load = [&](int e) {
                if (end > 0) next.load(p, tile.position[min(e + slot, end - 1)], unit);
            };
            load(0);
            for (int type = 0; type < p.num_present; ++type) {
                const int stop = tile.first[type + 1];
                int e = tile.first[type];
                if (e == stop) continue;
                Some d[COLUMNS][Hidden::PACKS];  // gradients of the sums, columns as in sum_columns
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i) {
                    const int lm = i ^ (4 * swap);
                    const T* const from_row =
                        sums + (Long(lm) * p.num_present + type) * UNITS + unit;
#pragma unroll
                    for (int k = 0; k < Hidden::PACKS; ++k) {
                        d[i][k] = {};
                        if (lm < WIDTH && Hidden::there(unit, k))
                            d[i][k] = *(const Some*)(from_row + k * Hidden::PACK * LANES);
                    }
                }
                for (; e < stop; e += AT_ONCE) {
                    const int now = min(e + slot, end - 1);
                    const bool counts = e + slot < stop;
                    T d_hidden[OWN] = {}, by_column[COLUMNS] = {}, h[OWN], slope[OWN];
#pragma unroll
                    for (int j = 0; j < OWN; ++j) h[j] = next.value(j, slope[j]);
                    load(min(e + AT_ONCE, stop));
#pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        const Quad y = harmonics[q][now * PITCH];
#pragma unroll
                        for (int k = 0; k < 4; ++k)
#pragma unroll
                            for (int j = 0; j < OWN; ++j) {
                                const T own = d[4 * q + k][j / Hidden::PACK].v[j % Hidden::PACK];
                                d_hidden[j] += own * y.v[k];
                                by_column[4 * q + k] += own * h[j];
                            }
                    }
                    T along = 0;  // gradient of the length, for column 0
#pragma unroll
                    for (int j = 0; j < OWN; ++j) along += d_hidden[j] * slope[j];
#pragma unroll
                    for (int q = 0; q < QUADS; ++q)
                        by_column[4 * q] = q == swap ? along : by_column[4 * q];
                    const T column = sum_columns(by_column, lane);
                    if constexpr (IN_PLACE) __syncwarp();  // all lanes have read harmonics
                    T* const to = gradients + now * RESULT + lane / (LANES / COLUMNS);
                    if (counts && lane % (LANES / COLUMNS) == 0)
                        *to = group > 0 ? *to + column : column;
                }
            }
        }
        __syncwarp();
        for (int s = threadIdx.x % 32; s < end; s += 32) {
            const Long id = tile.id[s];
            const T* const u = p.unit + 3 * id;
            const T* const own = gradients + s * RESULT;
            double d[3];
            harmonics_gradient(L_MAX, p.factors, u, [&](int i) { return own[i]; }, d);
            const double inverse = 1.0 / p.length[id];
            const double along = double(own[0]) * double(tile.by_length[s]) -
                                 (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
#pragma unroll
            for (int k = 0; k < 3; ++k)
                p.edge_gradient[3 * id + k] += T(p.sign * (along * u[k] + d[k] * inverse));
        }
        __syncwarp();
    }
}
