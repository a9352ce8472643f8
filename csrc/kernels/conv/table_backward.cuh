// The backward pass of a convolution whose weights come from a table: gradients of the edges'
// vectors and of the features.
//
// A pair is an edge and its reverse: both have the same weights, and harmonics that differ at most
// in sign. A block takes all pairs, or a part of the pairs, of a group of receivers. One end of a
// pair is a receiver of the group, whose features and gradients are in shared memory. The other end
// is the sender. Its features and gradients stay in registers while the block computes all its
// pairs with the group, so that these pairs write one row of gradients. An edge without a reverse
// is computed as half a pair. A block's pairs are divided into slices; the warps of a slice
// together have all channels of the kernel, and walk the pairs of the slice in batches, as in the
// forward pass.
#pragma once
#include "kernels/conv/table_edges.cuh"
#include "kernels/warp_sums.cuh"

struct Arguments : EdgeArguments {
    Long n_parts;                      // blocks that share the pairs of a group
    Long n_flip;                       // not 0: unit vectors point from the receiver to the sender
    Long n_group;                      // receivers of a group
    Long n_first;                      // first receiver of the first group
    Long n_local;                      // receivers of all groups
    const int* __restrict__ receiver;  // [num_edges]
    const int* __restrict__ node;      // [num_edges] node of the sender
    const Long* __restrict__ one_way;  // [1] not 0: edges have no reverse
    const T* __restrict__ g;           // [num_nodes * Problem::OUT_WIDTH] gradients of the outputs
    T* __restrict__ de;  // [num_streams][num_edges * 3] gradients of the edges' vectors; added to
    Long n_de;           // items of the gradients of a stream
    // The rest is null unless gradients of the features are wanted.
    const int* __restrict__ place;  // [num_pairs] row of dx, by number of the pair
    T* __restrict__ dx;             // [num_rows * Problem::IN_WIDTH] for the senders of each group
    T* __restrict__ own;            // [n_local * n_parts * Problem::IN_WIDTH] for the receivers
};

// ---- pairs of a batch

// What all warps must know of a pair.
struct alignas(16) PairRecord {
    int sender, row;     // rows of the features and of the table
    T z, slope;          // position within the interval, and its derivative by the length
    int to, edge;        // rows of the gradients of the features and of the vector
    int partner;         // node of the sender; -1: the edge has no reverse
    int local_receiver;  // number of the receiver in its group
    T unit[3], inverse;  // direction, and 1 / length
};

struct PrefetchedPair : PrefetchedEdge {
    int receiver, node, to;
};

MDCG_INLINE void prefetch_pair(const Arguments& p, PrefetchedPair& a, int begin, int number,
                               int count, int step, int lane, bool all) {
    if (!prefetch(p, a, begin, number, count, step, lane, all) || !all) return;
    a.receiver = p.receiver[a.edge];
    a.node = p.node[a.edge];
    a.to = Problem::FEATURE_GRADIENTS ? p.place[begin + number] : 0;
}

MDCG_INLINE PairRecord record_of(const Arguments& p, const PrefetchedPair& a, Long group) {
    const TableLookup lookup = look_up(p, a, a.receiver);
    const bool pair = *p.one_way == 0 && a.node < p.n_local && a.node != a.receiver;
    PairRecord r;
    r.sender = a.sender;
    r.row = lookup.row;
    r.z = lookup.z;
    r.slope = lookup.slope;
    r.to = a.to;
    r.edge = a.edge;
    r.partner = pair ? a.node : -1;
    r.local_receiver = int(a.receiver - p.n_first - group * p.n_group);
#pragma unroll
    for (int d = 0; d < 3; ++d) r.unit[d] = a.unit[d];
    r.inverse = T(1) / T(a.length);
    return r;
}

// Number of receivers of a group.
MDCG_INLINE int group_size(const Arguments& p, Long group) {
    const Long left = p.n_local - p.n_first - group * p.n_group;
    return int(left < p.n_group ? left : p.n_group);
}

// The pairs of the slice for which a lane prefetches. A batch has room for equally many pairs of
// each slice.
struct EdgeSlice {
    int begin, count;
    int longest;  // count of the block's longest slice
};

// Returns where part `q` of `all` parts of the active pairs begins: never between two pairs that
// write one row.
MDCG_INLINE int part_begin(const Arguments& p, int begin, int active, int q, int all, int lane) {
    if (q <= 0 || q >= all) return q <= 0 ? 0 : active;
    for (int at = int(Long(active) * q / all);; at += 32) {
        const int k = at + lane;
        bool starts_row = k >= active || k == 0 || !Problem::FEATURE_GRADIENTS;
        if (!starts_row) starts_row = p.place[begin + k] != p.place[begin + k - 1];
        const unsigned found = __ballot_sync(ALL_LANES, starts_row);
        if (found) return min(at + __ffs(found) - 1, active);
    }
}

template <int SLICES>
MDCG_INLINE EdgeSlice slice_of(const Arguments& p, Long group, int part, int parts, int lane) {
    constexpr int PER_SLICE = BATCH / SLICES;
    const int begin = p.row_ptr[group * p.n_group];
    const int active = p.num_active[group];
    EdgeSlice own{begin, 0, 0};
    int start = part_begin(p, begin, active, part * SLICES, parts * SLICES, lane);
    for (int s = 0; s < SLICES; ++s) {
        const int end = part_begin(p, begin, active, part * SLICES + s + 1, parts * SLICES, lane);
        if (lane / PER_SLICE == s) own.begin = begin + start, own.count = end - start;
        own.longest = max(own.longest, end - start);
        start = end;
    }
    return own;
}

// ---- shared memory of a block

template <typename Kernel>
struct SharedMemory {
    // items of a pair's sums over lanes: an odd number, so that rows use all banks
    static constexpr int PART_ROW = ATTRIBUTES | 1;
    static constexpr int RECORD_ITEMS = 2 * BATCH * sizeof(PairRecord) / sizeof(T);
    static constexpr int MATRIX_ITEMS = 2 * BATCH * Kernel::STRIDE;
    static constexpr int PART_ITEMS = 2 * Kernel::WARPS * BATCH * PART_ROW;
    static constexpr int BATCH_ITEMS =
        (RECORD_ITEMS + MATRIX_ITEMS + PART_ITEMS + QUAD - 1) / QUAD * QUAD;
    static_assert(Kernel::SHARED_BYTES / sizeof(T) == BATCH_ITEMS +
                                                          Kernel::WARPS * Kernel::HELD_ITEMS +
                                                          Kernel::BLOCK_WARPS * Kernel::SUM_ITEMS);

    PairRecord* records;  // [2][BATCH]
    T* matrices;          // [2][BATCH * Kernel::STRIDE]
    T* parts;             // [2][Kernel::WARPS][BATCH * PART_ROW] sums over the lanes of a warp
    T* held;              // [Kernel::WARPS][Kernel::HELD_ITEMS] rows of the receivers of the group
    T* sums;              // [Kernel::BLOCK_WARPS][Kernel::SUM_ITEMS] gradients of their features

    __device__ __forceinline__ SharedMemory(Quad* memory)
        : records((PairRecord*)memory),
          matrices((T*)memory + RECORD_ITEMS),
          parts(matrices + MATRIX_ITEMS),
          held((T*)memory + BATCH_ITEMS),
          sums(held + Kernel::WARPS * Kernel::HELD_ITEMS) {}
};

// Fills a batch from the pairs that the lanes have prefetched. One warp writes the records.
template <typename Kernel>
MDCG_INLINE void write_batch(const Arguments& p, const PrefetchedPair& ahead, Long group,
                             const SharedMemory<Kernel>& shared, int buffer, bool there, int lane,
                             int warp, bool writes_records) {
    if (!there || lane >= BATCH) return;
    if (writes_records) shared.records[buffer * BATCH + lane] = record_of(p, ahead, group);
    T* const matrices = shared.matrices + buffer * (BATCH * Kernel::STRIDE);
    write_path_matrices<Kernel>(ahead.unit, matrices + lane * Kernel::STRIDE, warp);
}

// Sums what the warps have found for the lane's pair, in the order of the warps, and adds the
// gradient of the vector of its edge to `de`. A row of parts holds gradients of the harmonics; item
// 0 (the gradient of Y00, which is constant) holds dE/dr. NOTES: a kernel adds to an edge once, so
// the sums are reproducible. Additions are atomic only so that no thread waits for the old value.
template <typename Kernel>
MDCG_INLINE void add_vector_gradients(const Arguments& p, const SharedMemory<Kernel>& shared,
                                      int buffer, int lane) {
    if (lane >= BATCH) return;
    const T* const part = shared.parts + (buffer * Kernel::WARPS * BATCH + lane) * shared.PART_ROW;
    T d[ATTRIBUTES];
#pragma unroll
    for (int b = 0; b < ATTRIBUTES; ++b) d[b] = part[b];
    for (int w = 1; w < Kernel::WARPS; ++w) {
#pragma unroll
        for (int b = 0; b < ATTRIBUTES; ++b) d[b] += part[w * BATCH * shared.PART_ROW + b];
    }
    const PairRecord& r = shared.records[buffer * BATCH + lane];
    T factors[ATTRIBUTES], g[3];
    load_harmonic_factors(factors);
    mdcg::harmonics_gradient(L_MAX, factors, r.unit, [&](int b) { return d[b]; }, g);
    const T along = d[0] - (g[0] * r.unit[0] + g[1] * r.unit[1] + g[2] * r.unit[2]) * r.inverse;
    T* const to = p.de + Kernel::STREAM * p.n_de + 3 * Long(r.edge);
    const T sign = p.n_flip ? T(-1) : T(1);
#pragma unroll
    for (int k = 0; k < 3; ++k) atomicAdd(to + k, sign * (along * r.unit[k] + g[k] * r.inverse));
}

// Sums each value over the lanes of a warp and writes the sums. Each step of the recursion takes
// as many values as the largest power of two that is left.
template <int START = 0>
MDCG_INLINE void store_lane_sums(T (&values)[ATTRIBUTES], T* to, int lane) {
    if constexpr (START < ATTRIBUTES) {
        constexpr int SIZE = largest_power_of_two(ATTRIBUTES - START, 32), LANES = 32 / SIZE;
        const T sum = reduce<SIZE>(values + START, lane);
        if (LANES == 1 || lane % LANES == 0) to[START + lane / LANES] = sum;
        store_lane_sums<START + SIZE>(values, to, lane);
    }
}

// ---- one warp

// Whether path `i` is the last path of its task that has its output.
template <typename Task>
constexpr bool is_last_of_output(int i) {
    for (int later = i + 1; later < Task::NUM_PATHS; ++later)
        if (Task::PATHS[later].output == Task::PATHS[i].output) return false;
    return true;
}

// Whether entry `e` is the first entry of its path that has its input.
template <typename Task>
constexpr bool is_first_of_input(int e, int first_entry) {
    for (int before = first_entry; before < e; ++before)
        if (Task::ENTRIES[before].a == Task::ENTRIES[e].a) return false;
    return true;
}

// Gradients of all pairs of the warp's slice, for the channels of its lanes.
template <typename Kernel, typename Task>
MDCG_INLINE void add_gradients(const Arguments& p, PrefetchedPair& ahead,
                               const SharedMemory<Kernel>& shared, Long group, EdgeSlice pairs,
                               int lane, int warp) {
    constexpr int PATHS = Task::NUM_PATHS, DIM = Task::DIM, OUTPUTS = Task::NUM_OUTPUTS;
    constexpr int CHANNELS = Task::CHANNELS, PER_SLICE = BATCH / Kernel::SLICES;
    constexpr bool FEATURES = Problem::FEATURE_GRADIENTS;
    typedef Vec<CHANNELS> Values;
    const int slice = warp / Kernel::WARPS, warp_of_slice = warp % Kernel::WARPS;
    const LaneChannels<Task> channels(warp_of_slice - Task::FIRST_WARP, lane);
    const ColumnPair* const table = (const ColumnPair*)p.table + channels.first;
    const T* const features = kept_address(p.x + Task::IN_OFFSET + channels.first);
    const int receivers = group_size(p, group);
    const Long first_receiver = p.n_first + group * p.n_group;

    // Rows of a receiver of the group: gradients of the outputs, features.
    const auto gradient_row = [&](Long node) {
        return p.g + node * Problem::OUT_WIDTH + channels.first;
    };
    const auto feature_row = [&](int local_receiver) {
        const Long node = first_receiver + local_receiver;
        return features + (FEATURES ? node : Long(p.types[node])) * Problem::IN_WIDTH;
    };
    const auto feature = [&](const T* row, int a) {
        return channels.or_zeros(*(const Values*)(row + a * Task::MUL));
    };

    // In shared memory: what every pair of a receiver reads, and the sums of its gradients.
    constexpr bool HELD = Kernel::HELD_ITEMS > 0;
    constexpr int HELD_VALUES = OUTPUTS + DIM;
    Values* const held = (Values*)(shared.held + warp_of_slice * Kernel::HELD_ITEMS) + lane;
    Values* const sums = (Values*)(shared.sums + warp * Kernel::SUM_ITEMS) + lane;
    if constexpr (HELD) {
        for (int s = slice; s < receivers; s += Kernel::SLICES) {
            Values* const to = held + s * (HELD_VALUES * 32);
            const T *const g = gradient_row(first_receiver + s), *const x = feature_row(s);
            each<OUTPUTS>(
                [&](auto o) { to[o * 32] = *(const Values*)(g + Task::OUTPUTS[o].offset); });
#pragma unroll
            for (int a = 0; a < DIM; ++a) to[(OUTPUTS + a) * 32] = feature(x, a);
        }
    }
    if constexpr (FEATURES) {
        for (int i = 0; i < receivers * DIM; ++i) sums[i * 32] = Values();
    }
    __syncthreads();

    Polynomials<CHANNELS> polynomials[PATHS];
    int loaded_row = -1;        // row of the table
    Values partner_g[OUTPUTS];  // gradients of the outputs of the sender
    int loaded_partner = -1;
    Values next[DIM];  // features of the sender of the next pair
    Values dx[DIM];    // sums of gradients of the sender's features
    int dx_row = -1;

    const auto load_features = [&](int sender) {
        const T* const row = features + Long(sender) * Problem::IN_WIDTH;
#pragma unroll
        for (int a = 0; a < DIM; ++a) next[a] = *(const Values*)(row + a * Task::MUL);
    };
    const auto row_of_table = [&](int row) {
        return table + Long(row) * (Problem::WEIGHTS * Column::PAIRS);
    };
    // Loads the gradients of the outputs that no path after `i` reads.
    const auto load_partner = [&](auto i, const T* g) {
        constexpr Path path = Task::PATHS[i];
        if constexpr (is_last_of_output<Task>(i))
            each<path.num_outputs>([&](auto c) {
                constexpr int o = path.output + c;
                partner_g[o] = *(const Values*)(g + Task::OUTPUTS[o].offset);
            });
    };
    const auto write_features = [&](T* to, const Values* values) {
#pragma unroll
        for (int a = 0; a < DIM; ++a)
            channels.write(to + a * Task::MUL, values[a], !Task::IS_FIRST_OF_INPUT);
    };
    const auto flush = [&]() {
        write_features(p.dx + Long(dx_row) * Problem::IN_WIDTH + Task::IN_OFFSET + channels.first,
                       dx);
    };
    // One edge, one path, one channel: adds to gradients of the features `d`, of the path's
    // nonzeros `dm` and of the length `along`.
    const auto add_edge = [&](auto i, const T* m, T weight, T slope, const Values* x,
                              const Values* g, int c, Values* d, T* dm, T& along) {
        constexpr Path path = Task::PATHS[i];
        T s[DIM], q[DIM] = {};  // weighted features; gradients pulled back through the path matrix
#pragma unroll
        for (int a = 0; a < DIM; ++a) s[a] = weight * x[a].v[c];
        each_between<path.first_entry, path.end_entry>([&](auto e) {
            constexpr Entry entry = Task::ENTRIES[e];
            const T gradient = g[entry.c].v[c];
            const T pulled = (entry.sign > 0 ? m[entry.nonzero] : -m[entry.nonzero]) * gradient;
            constexpr bool FIRST = is_first_of_input<Task>(e, path.first_entry);
            q[entry.a] = FIRST ? pulled : q[entry.a] + pulled;
            dm[entry.nonzero] += (entry.sign > 0 ? s[entry.a] : -s[entry.a]) * gradient;
        });
        T dw = x[0].v[c] * q[0];
#pragma unroll
        for (int a = 1; a < DIM; ++a) dw += x[a].v[c] * q[a];
        if constexpr (FEATURES) {
#pragma unroll
            for (int a = 0; a < DIM; ++a) d[a].v[c] += weight * q[a];
        }
        along += dw * slope;
    };

    const int count = __shfl_sync(ALL_LANES, pairs.count, slice * PER_SLICE);
    int buffer = 0;  // 0 or 1
    int turn = 0;    // the warp that writes records and gradients of vectors
    for (int first = 0; first < pairs.longest; first += PER_SLICE) {
        const int many = min(PER_SLICE, count - first);
        const int later =
            first + PER_SLICE + lane % PER_SLICE;  // the lane's pair of the next batch
        const bool more = first + PER_SLICE < pairs.longest;
        turn = turn + 1 < Kernel::BLOCK_WARPS ? turn + 1 : 0;
        if (more)
            prefetch_pair(p, ahead, pairs.begin, later, pairs.count, PER_SLICE, lane, warp == turn);
        const int before = later - 2 * PER_SLICE;
        if (first > 0 && warp == turn && before < pairs.count)
            add_vector_gradients(p, shared, buffer ^ 1, lane);
        const PairRecord* const records = shared.records + buffer * BATCH + slice * PER_SLICE;
        const T* const matrices =
            shared.matrices + (buffer * BATCH + slice * PER_SLICE) * Kernel::STRIDE;
        T* const part =
            shared.parts + ((buffer * Kernel::WARPS + warp_of_slice) * BATCH + slice * PER_SLICE) *
                               shared.PART_ROW;
        if (many > 0) {
            load_features(records[0].sender);
            if (records[0].row != loaded_row) {
                loaded_row = records[0].row;
                const ColumnPair* const from = row_of_table(loaded_row);
                each<PATHS>([&](auto i) { polynomials[i].load(from + Task::PATHS[i].weight); });
            }
            if (records[0].partner >= 0 && records[0].partner != loaded_partner) {
                loaded_partner = records[0].partner;
                const T* const from = gradient_row(loaded_partner);
                each<PATHS>([&](auto i) { load_partner(i, from); });
            }
        }
#pragma unroll 1
        for (int k = 0; k < many; ++k) {
            Values x[DIM];
#pragma unroll
            for (int a = 0; a < DIM; ++a) x[a] = channels.or_zeros(next[a]);
            const PairRecord record = records[k];
            const T z = record.z;
            // The operands of the next pair are loaded as soon as registers are free.
            const PairRecord& following = records[min(k + 1, many - 1)];
            const int next_row = following.row, next_partner = following.partner;
            const bool new_row = next_row != loaded_row;
            const bool new_partner = next_partner >= 0 && next_partner != loaded_partner;
            loaded_row = next_row;
            if (new_partner) loaded_partner = next_partner;
            const ColumnPair* const next_polynomials = row_of_table(next_row);
            const T* const next_gradients = gradient_row(next_partner);
            load_features(following.sender);

            const Values* const own = held + record.local_receiver * (HELD_VALUES * 32);
            const T* const own_g = gradient_row(first_receiver + record.local_receiver);
            const T* const own_x = feature_row(record.local_receiver);
            T along = 0, dy[ATTRIBUTES] = {};
            if (FEATURES && record.to != dx_row) {
                if (dx_row >= 0) flush();
                dx_row = record.to;
#pragma unroll
                for (int a = 0; a < DIM; ++a) dx[a] = Values();
            }
            const auto add_paths = [&](auto is_pair) {
                constexpr bool PAIR = is_pair;
                Values* const own_sum = sums + record.local_receiver * (DIM * 32);
                Values receiver_x[DIM], receiver_dx[DIM];
                if constexpr (PAIR) {
#pragma unroll
                    for (int a = 0; a < DIM; ++a) {
                        receiver_x[a] = HELD ? own[(OUTPUTS + a) * 32] : feature(own_x, a);
                        if (FEATURES) receiver_dx[a] = own_sum[a * 32];
                    }
                }
                each<PATHS>([&](auto i) {
                    constexpr Path path = Task::PATHS[i];
                    T weight[CHANNELS], slope[CHANNELS];
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c)
                        polynomials[i].evaluate(c, z, weight[c], slope[c]);
                    if (new_row) polynomials[i].load(next_polynomials + path.weight);
                    Values g[path.num_outputs];
                    each<path.num_outputs>([&](auto c) {
                        constexpr int o = path.output + c;
                        g[c] =
                            HELD ? own[o * 32] : *(const Values*)(own_g + Task::OUTPUTS[o].offset);
                    });
                    T m[whole_quads(path.num_nonzeros)], dm[whole_quads(path.num_nonzeros)] = {};
                    load_nonzeros(m, matrices + k * Kernel::STRIDE + path.nonzero);
#pragma unroll
                    for (int c = 0; c < CHANNELS; ++c) {
                        add_edge(i, m, weight[c], slope[c], x, g, c, dx, dm, along);
                        if constexpr (PAIR) {  // harmonics of odd degrees change sign
                            constexpr bool ODD = path.degree % 2 == 1;
                            add_edge(i, m, ODD ? -weight[c] : weight[c], ODD ? -slope[c] : slope[c],
                                     receiver_x, partner_g + path.output, c, receiver_dx, dm,
                                     along);
                        }
                    }
                    each<path.num_nonzeros>([&](auto n) {
                        constexpr int FIRST = Kernel::FIRST_TERM[path.nonzero + n];
                        constexpr int END = Kernel::FIRST_TERM[path.nonzero + n + 1];
                        each_between<FIRST, END>([&](auto t) {
                            constexpr Term term = Kernel::TERMS[t];
                            if (term.attribute > 0)  // the first harmonic is constant
                                dy[term.attribute] += term.coefficient * dm[n];
                        });
                    });
                    if (new_partner) load_partner(i, next_gradients);
                });
                if constexpr (PAIR && FEATURES) {
#pragma unroll
                    for (int a = 0; a < DIM; ++a) own_sum[a * 32] = receiver_dx[a];
                }
            };
            // NOTES: all lanes have the same pair, which the compiler cannot see.
            if (__any_sync(ALL_LANES, record.partner >= 0))
                add_paths(Index<1>());
            else
                add_paths(Index<0>());
            dy[0] = along * record.slope;
            store_lane_sums(dy, part + k * shared.PART_ROW, lane);
        }
        if (more)
            write_batch(p, ahead, group, shared, buffer ^ 1, later < pairs.count, lane, warp,
                        warp == turn);
        __syncthreads();
        buffer ^= 1;
    }

    if constexpr (FEATURES) {
        if (dx_row >= 0) flush();
        __syncthreads();
        for (int s = slice; s < receivers; s += Kernel::SLICES) {
            Values total[DIM] = {};
            const T* from = (const T*)sums - slice * (Kernel::WARPS * Kernel::SUM_ITEMS);
            for (int i = 0; i < Kernel::SLICES; ++i, from += Kernel::WARPS * Kernel::SUM_ITEMS) {
#pragma unroll
                for (int a = 0; a < DIM; ++a) total[a] += ((const Values*)from)[(s * DIM + a) * 32];
            }
            const Long row = (first_receiver + s) * p.n_parts + blockIdx.x % unsigned(p.n_parts);
            write_features(p.own + row * Problem::IN_WIDTH + Task::IN_OFFSET + channels.first,
                           total);
        }
    }
    const int last = (pairs.longest - 1) / PER_SLICE * PER_SLICE + lane % PER_SLICE;
    if (pairs.longest > 0 && warp == turn && last < pairs.count)
        add_vector_gradients(p, shared, buffer ^ 1, lane);
}

// A kernel: its block takes a part of the pairs of a group, its warps have the tasks.
template <typename Kernel, typename... Tasks>
MDCG_INLINE void table_backward(const Arguments& p) {
    END_IDLE_LANES();
    constexpr int PER_SLICE = BATCH / Kernel::SLICES;
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32;
    // NOTES: after the exchange the compiler knows that all lanes have the same number.
    const int warp = __shfl_sync(ALL_LANES, int(threadIdx.x) / 32, 0);
    const SharedMemory<Kernel> shared(shared_memory);
    const Long group = blockIdx.x / unsigned(p.n_parts);
    const int part = blockIdx.x % unsigned(p.n_parts);
    const EdgeSlice pairs = slice_of<Kernel::SLICES>(p, group, part, p.n_parts, lane);

    PrefetchedPair ahead;
    const int number = lane % PER_SLICE;
    prefetch_pair(p, ahead, pairs.begin, number, pairs.count, PER_SLICE, lane, warp == 0);
    write_batch(p, ahead, group, shared, 0, number < pairs.count, lane, warp, warp == 0);
    __syncthreads();
    run_task<Tasks...>(warp % Kernel::WARPS, [&](auto task) {
        add_gradients<Kernel, decltype(task)>(p, ahead, shared, group, pairs, lane, warp);
    });
}
