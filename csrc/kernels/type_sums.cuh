#include "kernels/harmonic_functions.cuh"
#include "kernels/type_sums.hpp"

// Sums over the edges of a receiver by type of the sender, of what depends on nothing else:
//     sums[lm][type][unit] = sum of h_unit(length) Y_lm(direction),
// and from gradients of those back to vectors of edges. A block sums over a receiver's edges in
// their order, shared between warps in the same way every time. In type_sums_gradient, `parts`
// blocks share the edges of a receiver.
//
// Defined before: L_MAX (and harmonic_functions.cuh); UNITS (items of a row of hidden units);
// DEGREE, odd, of the polynomials of their table (0: rows of units are given), in the place in
// [-1, 1] in an interval; THREADS, of a block; PER edges that a thread looks at for the sums; EACH
// units of a lane; MAX_TYPES of a list.
constexpr int WARPS = THREADS / 32, TILE = PER * THREADS;
constexpr int COLUMNS = WIDTH <= 4 ? 4 : WIDTH <= 16 ? 16 : 32;  // of harmonics, zeros at the end
constexpr int QUADS = COLUMNS / 4, PITCH = QUADS | 1;            // odd: lanes use all banks
constexpr int GROUP = 32 * EACH;                                 // units at a time
constexpr unsigned ALL = 0xffffffffu;

struct alignas(4 * sizeof(T)) Quad {
    T v[4];
};

// What a thread knows of an edge. `row` of the table, or of hidden.
struct Edge {
    int id, type, row;  // type -1: no edge
    T place;
    double by_length;  // derivative of the place
};

INLINE Edge look_at(const TypeSumArguments<T>& p, int receiver, int begin, int count, int number) {
    Edge e{0, -1, 0, T(0), 0.0};
    if (number >= count) return e;
    e.id = p.live[begin + number];
    const int type = p.sender_type[e.id];
    e.type = p.number[type];
#if DEGREE > 0
    const double root = sqrt(p.length[e.id]);
    const TableEntry found = p.places[Long(p.receiver_types[receiver]) * p.num_types + type];
    const double place = (root - found.first) * found.inverse_step;
    if (place < 0) *p.short_edges = 1;
    const int i = place > 0 ? int(place) : 0;
    if (place >= found.intervals) e.type = -1;  // not shorter than the r_max of its types
    e.row = found.row + i;
    e.place = T(2 * (place - i) - 1);
    e.by_length = found.inverse_step / root;
#else
    e.row = e.id - p.first_edge;
#endif
    return e;
}

// Edges of a tile, in the order of their types.
template <int COUNT>
struct Tile {
    static constexpr int PARTS = COUNT / 32;
    Quad harmonics[COUNT * PITCH];
    T place[COUNT];
    int row[COUNT];
    int first[MAX_TYPES * PARTS + 1];  // of every type, and of every warp's inside of it

    INLINE int begin(int type) const { return first[type * PARTS]; }

    // Looks at edges number, number + THREADS, .. of the receiver; `at`: where they stand, -1: not
    // at all.
    INLINE void fill(const TypeSumArguments<T>& p, int receiver, int begin, int count, int number,
                     Edge (&edge)[COUNT / THREADS], int (&at)[COUNT / THREADS]) {
        const int lane = threadIdx.x % 32, warp = warp_of_block();
#pragma unroll
        for (int i = 0; i < COUNT / THREADS; ++i) {
            edge[i] = look_at(p, receiver, begin, count, number + i * THREADS);
            at[i] = 0;
        }
        for (int type = 0; type < p.num_present; ++type)
#pragma unroll
            for (int i = 0; i < COUNT / THREADS; ++i) {
                const unsigned same = __ballot_sync(ALL, edge[i].type == type);
                if (edge[i].type == type) at[i] = __popc(same & ((1u << lane) - 1));
                if (lane == 0) first[type * PARTS + i * WARPS + warp] = __popc(same);
            }
        __syncthreads();
        if (warp == 0) {
            int before = 0;
            const int parts = p.num_present * PARTS;
            for (int from = 0; from < parts; from += 32) {
                const int own = from + lane < parts ? first[from + lane] : 0;
                int sum = own;
#pragma unroll
                for (int by = 1; by < 32; by *= 2) {
                    const int other = __shfl_up_sync(ALL, sum, by);
                    if (lane >= by) sum += other;
                }
                if (from + lane < parts) first[from + lane] = before + sum - own;
                before += __shfl_sync(ALL, sum, 31);
            }
            if (lane == 0) first[parts] = before;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < COUNT / THREADS; ++i) {
            if (edge[i].type < 0) {
                at[i] = -1;
                continue;
            }
            at[i] += first[edge[i].type * PARTS + i * WARPS + warp];
            place[at[i]] = edge[i].place;
            row[at[i]] = edge[i].row;
            T y[COLUMNS] = {};
            harmonics_of(p.factors, p.unit + 3 * Long(edge[i].id), y);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                const Quad four = {{y[4 * q], y[4 * q + 1], y[4 * q + 2], y[4 * q + 3]}};
                harmonics[at[i] * PITCH + q] = four;
            }
        }
        __syncthreads();
    }
};

// A lane's units of an edge, as they are in memory.
struct Units {
#if DEGREE > 0
    static constexpr int HALF = (DEGREE + 1) / 2;
    struct alignas(2 * sizeof(T)) Two {
        T v[2];
    };
    Two a[EACH][HALF];
    INLINE T value(int j, T z) const {
        T sum = a[j][HALF - 1].v[1] * z + a[j][HALF - 1].v[0];
#pragma unroll
        for (int k = HALF - 2; k >= 0; --k) sum = (sum * z + a[j][k].v[1]) * z + a[j][k].v[0];
        return sum;
    }
    INLINE T slope(int j, T z) const {
        T sum = DEGREE * a[j][HALF - 1].v[1];
#pragma unroll
        for (int k = HALF - 1; k >= 1; --k)
            sum = (sum * z + 2 * k * a[j][k].v[0]) * z + (2 * k - 1) * a[j][k - 1].v[1];
        return sum;
    }
#else
    T a[EACH];
    INLINE T value(int j, T) const { return a[j]; }
    INLINE T slope(int, T) const { return T(0); }
#endif
    INLINE void load(const TypeSumArguments<T>& p, int row, int unit) {
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const bool there = unit + 32 * j < UNITS;
#if DEGREE > 0
#pragma unroll
            for (int k = 0; k < HALF; ++k) {
                a[j][k] = {};
                if (there)
                    a[j][k] = ((const Two*)p.table)[(Long(row) * HALF + k) * UNITS + unit + 32 * j];
            }
#else
            a[j] = {};
            if (there) a[j] = p.hidden[Long(row) * UNITS + unit + 32 * j];
#endif
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) type_sums(const TypeSumArguments<T> p) {
    __shared__ Tile<TILE> tile;
    __shared__ T parts[WARPS * WIDTH * GROUP];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const int receiver = p.first_receiver + int(blockIdx.x);
    const int begin = p.row_ptr[receiver], count = p.num_live[receiver];
    T* const sums = p.sums + Long(blockIdx.x) * WIDTH * p.num_present * UNITS;
    const int part = warp % p.split, at_once = WARPS / p.split;
    int done = 0;
    do {  // also where there are no edges: sums are zeros
        Edge edge[PER];
        int at[PER];
        tile.fill(p, receiver, begin, count, done + int(threadIdx.x), edge, at);
        for (int group = 0; group < UNITS; group += GROUP)
            for (int types = 0; types < p.num_present; types += at_once) {
                const int type = types + warp / p.split, unit = group + lane;
                const bool there = type < p.num_present;
                const int end = there ? tile.begin(type + 1) : 0;
                int e = there ? tile.begin(type) + part : 0;
                T total[EACH][COLUMNS] = {};
                Units next;
                if (e < end) next.load(p, tile.row[e], unit);
                for (; e < end; e += p.split) {
                    const Units units = next;
                    if (e + p.split < end) next.load(p, tile.row[e + p.split], unit);
                    T h[EACH];
#pragma unroll
                    for (int j = 0; j < EACH; ++j) h[j] = units.value(j, tile.place[e]);
#pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        if (4 * q >= WIDTH) break;
                        const Quad y = tile.harmonics[e * PITCH + q];
#pragma unroll
                        for (int k = 0; k < 4; ++k)
#pragma unroll
                            for (int j = 0; j < EACH; ++j) total[j][4 * q + k] += h[j] * y.v[k];
                    }
                }
                const auto store = [&](int lm, int column, T sum) {
                    if (column >= UNITS) return;
                    T* const to = sums + (Long(lm) * p.num_present + type) * UNITS + column;
                    *to = done > 0 ? *to + sum : sum;
                };
                if (p.split == 1) {
                    if (!there) continue;
#pragma unroll
                    for (int lm = 0; lm < WIDTH; ++lm)
#pragma unroll
                        for (int j = 0; j < EACH; ++j) store(lm, unit + 32 * j, total[j][lm]);
                    continue;
                }
#pragma unroll
                for (int lm = 0; lm < WIDTH; ++lm)
#pragma unroll
                    for (int j = 0; j < EACH; ++j)
                        parts[(warp * WIDTH + lm) * GROUP + 32 * j + lane] = total[j][lm];
                __syncthreads();
                for (int i = part * 32 + lane; there && i < WIDTH * GROUP; i += p.split * 32) {
                    T sum = 0;
                    for (int k = 0; k < p.split; ++k)
                        sum += parts[(warp - part + k) * WIDTH * GROUP + i];
                    store(i / GROUP, group + i % GROUP, sum);
                }
                __syncthreads();
            }
        __syncthreads();
        done += TILE;
    } while (done < count);
}

// Adds halves of columns and of lanes until one column is left. Template arguments, since the
// compiler keeps arrays in registers only where it knows every index.
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

// Sums over all lanes of sum[i], which stands for column i ^ 4 swap with swap = lane /
// (128 / COLUMNS): lane i * (32 / COLUMNS) returns that of column i.
INLINE T sum_columns(T (&sum)[COLUMNS], int lane) {
    add_halves<COLUMNS / 2, 16>(sum, lane);
    return sum[0];
}

// `sums` holds gradients of the sums. Adds to edge_gradient; rows of units get their gradients.
extern "C" __global__ void __launch_bounds__(THREADS)
    type_sums_gradient(const TypeSumArguments<T> p) {
    __shared__ Tile<THREADS> tile;
    constexpr int RESULT = COLUMNS + 1;
    __shared__ T d_harmonics[THREADS * RESULT], d_place[THREADS];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const int swap = lane / (128 / COLUMNS);
    const int row = blockIdx.x / unsigned(p.parts), part = blockIdx.x - row * p.parts;
    const int receiver = p.first_receiver + row;
    const int begin = p.row_ptr[receiver], live = p.num_live[receiver];
    const int first = Long(live) * part / p.parts, last = Long(live) * (part + 1) / p.parts;
    const T* const sums = p.sums + Long(row) * WIDTH * p.num_present * UNITS;
    for (int done = first; done < last; done += THREADS) {
        Edge edge[1];
        int at[1];
        tile.fill(p, receiver, begin, last, done + int(threadIdx.x), edge, at);
        const int edges = tile.begin(p.num_present);
        const int from = edges * warp / WARPS, end = edges * (warp + 1) / WARPS;
        for (int group = 0; group < UNITS; group += GROUP) {
            const int unit = group + lane;
            T d[EACH][COLUMNS];  // of the sums of the type, columns as in sum_columns
            int type = -1;
            Units next;
            if (from < end) next.load(p, tile.row[from], unit);
            for (int e = from; e < end; ++e) {
                const Units units = next;
                if (e + 1 < end) next.load(p, tile.row[e + 1], unit);
                if (type < 0 || e >= tile.begin(type + 1)) {
                    do ++type;
                    while (e >= tile.begin(type + 1));
#pragma unroll
                    for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
                        for (int j = 0; j < EACH; ++j) {
                            const int lm = i ^ (4 * swap), column = unit + 32 * j;
                            d[j][i] = lm < WIDTH && column < UNITS
                                          ? sums[(Long(lm) * p.num_present + type) * UNITS + column]
                                          : T(0);
                        }
                }
                T d_hidden[EACH] = {}, by_column[COLUMNS] = {}, h[EACH];
                const T t = tile.place[e];
#pragma unroll
                for (int j = 0; j < EACH; ++j) h[j] = units.value(j, t);
#pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    const Quad y = tile.harmonics[e * PITCH + (q ^ swap)];
#pragma unroll
                    for (int k = 0; k < 4; ++k)
#pragma unroll
                        for (int j = 0; j < EACH; ++j) {
                            d_hidden[j] += d[j][4 * q + k] * y.v[k];
                            by_column[4 * q + k] += d[j][4 * q + k] * h[j];
                        }
                }
                T along = 0;
#pragma unroll
                for (int j = 0; j < EACH; ++j) {
#if DEGREE > 0
                    along += d_hidden[j] * units.slope(j, t);
#else
                    if (unit + 32 * j < UNITS)
                        p.hidden[Long(tile.row[e]) * UNITS + unit + 32 * j] = d_hidden[j];
#endif
                }
                const T column = sum_columns(by_column, lane);
                T* const to = d_harmonics + e * RESULT + lane / (32 / COLUMNS);
                if (lane % (32 / COLUMNS) == 0) *to = group > 0 ? *to + column : column;
#if DEGREE > 0
#pragma unroll
                for (int bit = 16; bit > 0; bit /= 2) along += __shfl_xor_sync(ALL, along, bit);
#endif
                if (lane == 0) d_place[e] = group > 0 ? d_place[e] + along : along;
            }
        }
        __syncthreads();
        if (at[0] >= 0) {
            const Long id = edge[0].id;
            const T* const u = p.unit + 3 * id;
            double d[3];
            harmonics_gradient(p.factors, u, d_harmonics + at[0] * RESULT, d);
            const double inverse = 1.0 / p.length[id];
            const double along = double(d_place[at[0]]) * edge[0].by_length -
                                 (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
#pragma unroll
            for (int k = 0; k < 3; ++k)
                p.edge_gradient[3 * id + k] += T(p.sign * (along * u[k] + d[k] * inverse));
        }
        __syncthreads();
    }
}
