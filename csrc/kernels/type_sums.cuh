#include "kernels/harmonic_functions.cuh"
#include "kernels/type_sums.hpp"

// Sums over the edges of a receiver by type of the sender, of what depends on nothing else:
//     sums[lm][type][unit] = sum of h_unit(length) Y_lm(direction),
// and from gradients of those back to vectors of edges. A block takes a receiver, and sorts as many
// of its edges as it has threads by type, in shared memory. The order of additions depends on the
// list alone, so that results are reproducible. In type_sums_gradient, `parts` blocks share the
// edges of a receiver.
//
// Defined before: L_MAX (and harmonic_functions.cuh); UNITS (items of a row of hidden units);
// DEGREE, odd, of the polynomials of their table (0: rows of units are given), in the place in
// [-1, 1] in an interval; THREADS, of a block; EACH units of a lane in the gradient; MAX_TYPES of a
// list.
constexpr int WARPS = THREADS / 32;
constexpr int COLUMNS = WIDTH <= 4 ? 4 : WIDTH <= 16 ? 16 : 32;  // of harmonics, zeros at the end
constexpr int QUADS = COLUMNS / 4, PITCH = QUADS | 1;            // odd: lanes use all banks
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

// An edge of the receiver for each thread of the block, in the order of their types.
struct Tile {
    Quad harmonics[THREADS * PITCH];
    T place[THREADS];
    int row[THREADS];
    int first[MAX_TYPES * WARPS + 1];  // [type][warp that read them], and the number of edges

    INLINE int begin(int type) const { return first[type * WARPS]; }

    // Every thread of the block reads edge `number` of the receiver and stores it. Returns where
    // it stands, -1 if there is none.
    INLINE int fill(const TypeSumArguments<T>& p, int receiver, int begin, int count, int number,
                    Edge& edge) {
        const int lane = threadIdx.x % 32, warp = warp_of_block();
        edge = look_at(p, receiver, begin, count, number);
        int at = -1;
        for (int type = 0; type < p.num_present; ++type) {
            const unsigned same = __ballot_sync(ALL, edge.type == type);
            if (edge.type == type) at = __popc(same & ((1u << lane) - 1));
            if (lane == 0) first[type * WARPS + warp] = __popc(same);
        }
        __syncthreads();
        if (warp == 0) {
            int before = 0;
            const int parts = p.num_present * WARPS;
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
        if (at >= 0) {
            at += first[edge.type * WARPS + warp];
            place[at] = edge.place;
            row[at] = edge.row;
            T y[COLUMNS] = {};
            harmonics_of(p.factors, p.unit + 3 * Long(edge.id), y);
#pragma unroll
            for (int q = 0; q < QUADS; ++q) {
                const Quad four = {{y[4 * q], y[4 * q + 1], y[4 * q + 2], y[4 * q + 3]}};
                harmonics[at * PITCH + q] = four;
            }
        }
        __syncthreads();
        return at;
    }
};

// Hidden units of an edge that a lane takes, 32 apart: values, or factors of their polynomials.
template <int COUNT>
struct Units {
#if DEGREE > 0
    static constexpr int HALF = (DEGREE + 1) / 2;
    struct alignas(2 * sizeof(T)) Two {
        T v[2];
    };
    Two a[COUNT][HALF];
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
    T a[COUNT];
    INLINE T value(int j, T) const { return a[j]; }
    INLINE T slope(int, T) const { return T(0); }
#endif
    INLINE void load(const TypeSumArguments<T>& p, int row, int unit) {
#pragma unroll
        for (int j = 0; j < COUNT; ++j) {
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

// A task is 32 units of a type. A warp adds all edges of it; where tasks are few, `split` warps
// share one, and their parts are added.
extern "C" __global__ void __launch_bounds__(THREADS) type_sums(const TypeSumArguments<T> p) {
    constexpr int GROUPS = (UNITS + 31) / 32;
    constexpr int AHEAD = 16 / sizeof(T);  // edges whose units are loaded before they are needed
    __shared__ Tile tile;
    __shared__ T parts[WARPS * WIDTH * 32];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const int receiver = p.first_receiver + int(blockIdx.x);
    const int begin = p.row_ptr[receiver], count = p.num_live[receiver];
    T* const sums = p.sums + Long(blockIdx.x) * WIDTH * p.num_present * UNITS;
    const int part = warp % p.split, at_once = WARPS / p.split;
    const int tasks = p.num_present * GROUPS;
    int done = 0;
    do {  // also where there are no edges: sums are zeros
        Edge edge;
        tile.fill(p, receiver, begin, count, done + int(threadIdx.x), edge);
        for (int begun = 0; begun < tasks; begun += at_once) {
            const int task = begun + warp / p.split;
            const int type = task / GROUPS, unit = task % GROUPS * 32 + lane;
            const bool there = task < tasks;
            const int end = there ? tile.begin(type + 1) : 0;
            int e = there ? tile.begin(type) + part : 0;
            T total[COLUMNS] = {};
            Units<1> next[AHEAD];
            const auto load = [&](int from) {
#pragma unroll
                for (int i = 0; i < AHEAD; ++i)
                    if (from + i * p.split < end)
                        next[i].load(p, tile.row[from + i * p.split], unit);
            };
            const auto add = [&](int at, T h) {
#pragma unroll
                for (int q = 0; q < QUADS; ++q) {
                    if (4 * q >= WIDTH) break;
                    const Quad y = tile.harmonics[at * PITCH + q];
#pragma unroll
                    for (int k = 0; k < 4; ++k) total[4 * q + k] += h * y.v[k];
                }
            };
            load(e);
            for (; e + (AHEAD - 1) * p.split < end; e += AHEAD * p.split) {
                T h[AHEAD];
#pragma unroll
                for (int i = 0; i < AHEAD; ++i)
                    h[i] = next[i].value(0, tile.place[e + i * p.split]);
                load(e + AHEAD * p.split);
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) add(e + i * p.split, h[i]);
            }
#pragma unroll
            for (int i = 0; i < AHEAD - 1; ++i, e += p.split)
                if (e < end) add(e, next[i].value(0, tile.place[e]));
            const auto store = [&](int lm, int column, T sum) {
                if (column >= UNITS) return;
                T* const to = sums + (Long(lm) * p.num_present + type) * UNITS + column;
                *to = done > 0 ? *to + sum : sum;
            };
            if (p.split == 1) {
                if (!there) continue;
#pragma unroll
                for (int lm = 0; lm < WIDTH; ++lm) store(lm, unit, total[lm]);
                continue;
            }
#pragma unroll
            for (int lm = 0; lm < WIDTH; ++lm) parts[(warp * WIDTH + lm) * 32 + lane] = total[lm];
            __syncthreads();
            for (int lm = part; there && lm < WIDTH; lm += p.split) {
                T sum = 0;
                for (int k = 0; k < p.split; ++k)
                    sum += parts[((warp - part + k) * WIDTH + lm) * 32 + lane];
                store(lm, unit, sum);
            }
            __syncthreads();
        }
        __syncthreads();
        done += THREADS;
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
    constexpr int GROUP = 32 * EACH;  // units at a time
    constexpr int RESULT = COLUMNS + 1;
    __shared__ Tile tile;
    __shared__ T gradients[THREADS * RESULT];  // of harmonics; in place of the first, of the length
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const int swap = lane / (128 / COLUMNS);
    const int row = blockIdx.x / unsigned(p.parts), part = blockIdx.x - row * p.parts;
    const int receiver = p.first_receiver + row;
    const int begin = p.row_ptr[receiver], live = p.num_live[receiver];
    const int first = Long(live) * part / p.parts, last = Long(live) * (part + 1) / p.parts;
    const T* const sums = p.sums + Long(row) * WIDTH * p.num_present * UNITS;
    const Quad* harmonics[QUADS];
#pragma unroll
    for (int q = 0; q < QUADS; ++q) harmonics[q] = tile.harmonics + (q ^ swap);
    for (int done = first; done < last; done += THREADS) {
        Edge edge;
        const int at = tile.fill(p, receiver, begin, last, done + int(threadIdx.x), edge);
        const int edges = tile.begin(p.num_present);
        const int from = edges * warp / WARPS, end = edges * (warp + 1) / WARPS;
        for (int group = 0; group < UNITS; group += GROUP) {
            const int unit = group + lane;
            Units<EACH> next;
            if (from < end) next.load(p, tile.row[from], unit);
            int type = 0, e = from;
            while (e < end) {
                while (e >= tile.begin(type + 1)) ++type;
                const int stop = min(end, tile.begin(type + 1));
                T d[EACH][COLUMNS];  // of the sums of the type, columns as in sum_columns
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i)
#pragma unroll
                    for (int j = 0; j < EACH; ++j) {
                        const int lm = i ^ (4 * swap), column = unit + 32 * j;
                        d[j][i] = lm < WIDTH && column < UNITS
                                      ? sums[(Long(lm) * p.num_present + type) * UNITS + column]
                                      : T(0);
                    }
                for (; e < stop; ++e) {
                    T d_hidden[EACH] = {}, by_column[COLUMNS] = {}, h[EACH], slope[EACH];
#pragma unroll
                    for (int j = 0; j < EACH; ++j) {
                        h[j] = next.value(j, tile.place[e]);
                        slope[j] = next.slope(j, tile.place[e]);
                    }
                    if (e + 1 < end) next.load(p, tile.row[e + 1], unit);
#pragma unroll
                    for (int q = 0; q < QUADS; ++q) {
                        const Quad y = harmonics[q][e * PITCH];
#pragma unroll
                        for (int k = 0; k < 4; ++k)
#pragma unroll
                            for (int j = 0; j < EACH; ++j) {
                                d_hidden[j] += d[j][4 * q + k] * y.v[k];
                                by_column[4 * q + k] += d[j][4 * q + k] * h[j];
                            }
                    }
                    T along =
                        0;  // takes the column of the constant harmonic, which has no gradient
#pragma unroll
                    for (int j = 0; j < EACH; ++j) {
#if DEGREE > 0
                        along += d_hidden[j] * slope[j];
#else
                        if (unit + 32 * j < UNITS)
                            p.hidden[Long(tile.row[e]) * UNITS + unit + 32 * j] = d_hidden[j];
#endif
                    }
#pragma unroll
                    for (int q = 0; q < QUADS; ++q)
                        by_column[4 * q] = q == swap ? along : by_column[4 * q];
                    const T column = sum_columns(by_column, lane);
                    T* const to = gradients + e * RESULT + lane / (32 / COLUMNS);
                    if (lane % (32 / COLUMNS) == 0) *to = group > 0 ? *to + column : column;
                }
            }
        }
        __syncthreads();
        if (at >= 0) {
            const Long id = edge.id;
            const T* const u = p.unit + 3 * id;
            const T* const own = gradients + at * RESULT;
            double d[3];
            harmonics_gradient(p.factors, u, own, d);
            const double inverse = 1.0 / p.length[id];
            const double along = double(own[0]) * edge.by_length -
                                 (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
#pragma unroll
            for (int k = 0; k < 3; ++k)
                p.edge_gradient[3 * id + k] += T(p.sign * (along * u[k] + d[k] * inverse));
        }
        __syncthreads();
    }
}
