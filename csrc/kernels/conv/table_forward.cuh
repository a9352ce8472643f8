// The forward pass of a convolution whose weights come from a table: sums of messages by receiver.
//
// A block takes a receiver. Its warps walk the receiver's edges in batches: records and path
// matrices of the next batch are written to shared memory while the warps work on this one. A warp
// computes several paths for some channels of a block of the features, and keeps its sums in
// registers. Edges are sorted roughly by length, so that the polynomials of the table often serve
// several edges. In small systems several groups of warps share the receiver's edges.
#pragma once
#include "kernels/conv/table_edges.cuh"

struct Arguments : EdgeArguments {
    T* __restrict__ out;  // [num_receivers * Problem::OUT_WIDTH]
};

// What all warps must know of an edge. The loop over edges loads ahead, so a record names what is
// to be loaded while its edge is evaluated: `row` of the next edge, and `sender` of the edge that
// has the same place in the next iteration. The last edges of a batch name the last edge itself.
struct alignas(16) EdgeRecord {
    int sender, row;  // rows of the features and of the table
    T z;              // position of its own edge within the interval
};

// Shared memory of a warp group, in items: two batches; after the last batch, sums of outputs.
template <typename Kernel>
struct SharedMemory {
    // records of the edges, then records that name the first row and senders of the batch
    static constexpr int RECORDS = BATCH + Kernel::EDGES_AT_ONCE;
    static constexpr int RECORD_ITEMS = 2 * RECORDS * sizeof(EdgeRecord) / sizeof(T);
    static constexpr int MATRIX_ITEMS = 2 * BATCH * Kernel::STRIDE;
    static constexpr int SUM_ITEMS = Kernel::MAX_WARP_GROUPS > 1 ? Kernel::SUM_ITEMS : 0;
    static constexpr int ITEMS = Kernel::SHARED_BYTES / sizeof(T);
    static_assert(ITEMS >= RECORD_ITEMS + MATRIX_ITEMS, "batches fit");
    static_assert(ITEMS >= Kernel::BLOCK_WARPS * SUM_ITEMS, "sums fit");

    EdgeRecord* records;  // [2][RECORDS]
    T* matrices;          // [2][BATCH * Kernel::STRIDE]
    T* sums;              // [Kernel::BLOCK_WARPS][SUM_ITEMS]

    __device__ __forceinline__ SharedMemory(Quad* memory)
        : records((EdgeRecord*)memory), matrices((T*)memory + RECORD_ITEMS), sums((T*)memory) {}
};

// Writes the records of a batch. The first lanes have an edge each (`there`).
template <typename Kernel>
MDCG_INLINE void write_records(EdgeRecord* records, EdgeRecord own, bool there, int lane) {
    const int last = max(__popc(__ballot_sync(ALL_LANES, there)) - 1, 0);
    const auto of_edge = [&](int value, int edge) {
        return __shfl_sync(ALL_LANES, value, min(edge, last));
    };
    EdgeRecord first = own;
    first.sender = of_edge(own.sender, lane);
    if (lane < Kernel::EDGES_AT_ONCE) records[BATCH + lane] = first;
    own.sender = of_edge(own.sender, lane + Kernel::EDGES_AT_ONCE);
    own.row = of_edge(own.row, lane + 1);
    if (there) records[lane] = own;
}

// Fills a batch from the edges that the lanes have prefetched. One warp writes the records.
template <typename Kernel>
MDCG_INLINE void write_batch(const Arguments& p, const PrefetchedEdge& ahead, Long receiver,
                             const SharedMemory<Kernel>& shared, int buffer, bool there, int lane,
                             int warp, bool writes_records) {
    there = there && lane < BATCH;
    if (writes_records) {
        EdgeRecord own{};
        if (there) {
            const TableLookup lookup = look_up(p, ahead, receiver);
            own = {ahead.sender, lookup.row, lookup.z};
        }
        write_records<Kernel>(shared.records + buffer * shared.RECORDS, own, there, lane);
    }
    T* const matrices = shared.matrices + buffer * (BATCH * Kernel::STRIDE);
    if (there) write_path_matrices<Kernel>(ahead.unit, matrices + lane * Kernel::STRIDE, warp);
}

// One warp: sums of a receiver over `count` edges from `begin`, for the channels of its lanes.
template <typename Kernel, typename Task>
MDCG_INLINE void sum_messages(const Arguments& p, PrefetchedEdge& ahead,
                              const SharedMemory<Kernel>& shared, Long receiver, int begin,
                              int count, int lane, int warp) {
    constexpr int EDGES = Kernel::EDGES_AT_ONCE, PATHS = Task::NUM_PATHS, DIM = Task::DIM;
    constexpr int CHANNELS = Task::CHANNELS, OUTPUTS = Task::NUM_OUTPUTS;
    static_assert(EDGES <= 2);
    typedef Vec<CHANNELS> Values;
    const LaneChannels<Task> channels(warp - Task::FIRST_WARP, lane);
    const ColumnPair* const table = (const ColumnPair*)p.table + channels.first;
    const T* const features = kept_address(p.x + Task::IN_OFFSET + channels.first);

    Values out[OUTPUTS] = {};
    Polynomials<CHANNELS> polynomials[PATHS];
    int loaded_row = -1;      // row of the table
    Values next[EDGES][DIM];  // features of the edges of the next iteration

    const auto load_features = [&](Values* to, int sender) {
        const T* const row = features + Long(sender) * Problem::IN_WIDTH;
#pragma unroll
        for (int a = 0; a < DIM; ++a) to[a] = *(const Values*)(row + a * Task::MUL);
    };
    const auto load_polynomials = [&](int row) {
        if (row == loaded_row) return;
        const ColumnPair* const from = table + Long(row) * (Problem::WEIGHTS * Column::PAIRS);
        each<PATHS>([&](auto i) { polynomials[i].load(from + Task::PATHS[i].weight); });
        loaded_row = row;
    };
    // Adds the messages of an edge. `features` holds the features of this edge, and then gets those
    // of the edge that has the same place in the next iteration.
    const auto add_edge = [&](EdgeRecord record, const T* matrices, Values* features) {
        Values x[DIM];
        T weight[PATHS][CHANNELS], slope;
#pragma unroll
        for (int a = 0; a < DIM; ++a) x[a] = channels.or_zeros(features[a]);
#pragma unroll
        for (int c = 0; c < CHANNELS; ++c)
            each<PATHS>([&](auto i) { polynomials[i].evaluate(c, record.z, weight[i][c], slope); });
        load_polynomials(record.row);
        load_features(features, record.sender);
        each<PATHS>([&](auto i) {
            constexpr Path path = Task::PATHS[i];
            T nonzero[whole_quads(path.num_nonzeros)];
            load_nonzeros(nonzero, matrices + path.nonzero);
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) {
                T s[DIM];
#pragma unroll
                for (int a = 0; a < DIM; ++a) s[a] = weight[i][c] * x[a].v[c];
                each_between<path.first_entry, path.end_entry>([&](auto e) {
                    constexpr Entry entry = Task::ENTRIES[e];
                    const T m = entry.sign > 0 ? nonzero[entry.nonzero] : -nonzero[entry.nonzero];
                    out[path.output + entry.c].v[c] += m * s[entry.a];
                });
            }
        });
    };

    int buffer = 0;  // 0 or 1
    int turn = 0;    // the warp that writes records
    for (int first = 0; first < count; first += BATCH) {
        const int many = min(BATCH, count - first);
        const int later = first + BATCH + lane;  // the lane's edge of the next batch
        const bool more = first + BATCH < count;
        turn = turn + 1 < Kernel::BLOCK_WARPS ? turn + 1 : 0;
        if (more) prefetch(p, ahead, begin, later, count, BATCH, lane, warp == turn);
        const EdgeRecord* const records = shared.records + buffer * shared.RECORDS;
        const T* const matrices = shared.matrices + buffer * (BATCH * Kernel::STRIDE);
        load_polynomials(records[BATCH].row);
#pragma unroll
        for (int j = 0; j < EDGES; ++j) load_features(next[j], records[BATCH + j].sender);
#pragma unroll 1
        for (int k = 0; k < many; k += EDGES) {
            add_edge(records[k], matrices + k * Kernel::STRIDE, next[0]);
            if constexpr (EDGES == 2) {
                if (k + 1 == many) break;
                add_edge(records[k + 1], matrices + (k + 1) * Kernel::STRIDE, next[1]);
            }
        }
        if (more)
            write_batch(p, ahead, receiver, shared, buffer ^ 1, later < count, lane, warp,
                        warp == turn);
        __syncthreads();
        buffer ^= 1;
    }

    // Sum over warp groups. NOTES: the number of the group is found again here, so that it takes no
    // register in the loop over edges.
    constexpr int THREADS = Kernel::BLOCK_WARPS * 32;
    if (Kernel::MAX_WARP_GROUPS > 1 && blockDim.x > THREADS) {
        const int group = int(threadIdx.x) / THREADS, groups = int(blockDim.x) / THREADS;
        // Groups differ by at most one edge, so a group may have one batch less than the longest:
        // it waits once more, so that all groups meet at the same barriers.
        const int longest = (p.num_active[receiver] + groups - 1) / groups;
        if ((count + BATCH - 1) / BATCH < (longest + BATCH - 1) / BATCH) __syncthreads();
        T* const sums = shared.sums + warp * shared.SUM_ITEMS + lane * CHANNELS;
        if (group > 0) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o) *(Values*)(sums + o * (32 * CHANNELS)) = out[o];
        }
        __syncthreads();
        if (group > 0) return;
        for (int other = 1; other < groups; ++other) {
#pragma unroll
            for (int o = 0; o < OUTPUTS; ++o)
                out[o] += *(const Values*)(sums + other * shared.ITEMS + o * (32 * CHANNELS));
        }
    }
    T* const to = p.out + receiver * Problem::OUT_WIDTH + channels.first;
    each<OUTPUTS>([&](auto o) {
        constexpr Output output = Task::OUTPUTS[o];
        channels.write(to + output.offset, out[o], !output.is_first);
    });
}

// A kernel: its block takes a receiver, its warps have the tasks.
template <typename Kernel, typename... Tasks>
MDCG_INLINE void table_forward(const Arguments& p) {
    END_IDLE_LANES();
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32;
    // NOTES: after the exchange the compiler knows that all lanes have the same number.
    const int warp_of_block = __shfl_sync(ALL_LANES, int(threadIdx.x) / 32, 0);
    const int warp = warp_of_block % Kernel::BLOCK_WARPS;
    const int group = warp_of_block / Kernel::BLOCK_WARPS;
    const int groups = int(blockDim.x) / (Kernel::BLOCK_WARPS * 32);
    const SharedMemory<Kernel> shared(shared_memory + group * (Kernel::SHARED_BYTES / 16));
    const Long receiver = blockIdx.x;
    const int active = p.num_active[receiver];
    const int skipped = active * group / groups;
    const int begin = p.row_ptr[receiver] + skipped;
    const int count = active * (group + 1) / groups - skipped;

    PrefetchedEdge ahead;
    prefetch(p, ahead, begin, lane, count, BATCH, lane, warp == 0);
    write_batch(p, ahead, receiver, shared, 0, lane < count, lane, warp, warp == 0);
    __syncthreads();
    run_task<Tasks...>(warp, [&](auto task) {
        sum_messages<Kernel, decltype(task)>(p, ahead, shared, receiver, begin, count, lane, warp);
    });
}
