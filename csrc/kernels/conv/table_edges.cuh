// Convolutions whose weights come from a table of edge lengths: what both passes share.
//
// mdcg/codegen/conv/table.py prints what differs between models. Before this text it prints the
// type T, L_MAX (the largest degree of the harmonics) and `struct Problem`; after it, a struct for
// each kernel, a struct for each warp task of the kernel, and the kernels themselves. A warp task
// is the work of one or more warps: some channels of one block of the features, and some of the
// paths that read this block.
#pragma once
#include "kernels/conv/path_matrices.cuh"
#include "kernels/spherical_harmonics.hpp"
#include "kernels/table_column.cuh"

constexpr int BATCH = Problem::BATCH;  // edges whose path matrices are in shared memory at a time
constexpr int ATTRIBUTES = (L_MAX + 1) * (L_MAX + 1);  // harmonics of an edge
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- tables of a problem, its kernels and their warp tasks

// Members of Problem:
//     BATCH
//     DEGREE                      of the table's polynomials
//     IN_WIDTH, OUT_WIDTH         items of a row of features, and of outputs
//     WEIGHTS                     columns of the table
//     HARMONIC_FACTORS            [ATTRIBUTES]
//     FEATURE_GRADIENTS           backward: whether gradients of the features are wanted
//
// Members of a kernel:
//     BLOCK_WARPS, SHARED_BYTES   of a block; forward, of each of its MAX_WARP_GROUPS warp groups
//     EDGES_AT_ONCE               forward: edges of an iteration
//     WARPS, SLICES               backward: warps of a slice, which have all channels together, and
//                                 slices of a block
//     STREAM                      backward: which of the gradients of vectors it adds to
//     SUM_ITEMS, HELD_ITEMS       items of shared memory for a warp; HELD_ITEMS 0: receivers' rows
//                                 are read from device memory
//     STRIDE                      items from an edge's row of path matrices to the next
//     FIRST_QUAD                  [BLOCK_WARPS + 1] first 16 bytes of the row that each warp
//                                 evaluates
//     FIRST_TERM                  [items of a row + 1] first of its TERMS
//
// Members of a warp task:
//     FIRST_WARP, NUM_WARPS       its warps
//     CHANNELS                    of a lane
//     MUL, DIM, IN_OFFSET         channels and components of its block of the features, and where
//                                 this block begins in a row
//     IS_FIRST_OF_INPUT           backward: no earlier kernel has written gradients of the block
//     PATHS [NUM_PATHS], their ENTRIES, OUTPUTS [NUM_OUTPUTS]

// A path. Its weights are columns of the table. Few entries of its matrix are not zero; entries
// that are equal up to their sign share one nonzero, which is a sum of terms.
struct Path {
    int weight;                  // first column of the table
    int output, num_outputs;     // components of the outputs of its task
    int nonzero, num_nonzeros;   // items of an edge's row of path matrices
    int first_entry, end_entry;  // range of the task's ENTRIES
    int degree;                  // degree of the harmonic
};
struct Output {     // a component of an output
    int offset;     // of its first channel in a row of the output
    bool is_first;  // no kernel before has written it: it is stored, others are added to (forward)
};

// ---- arguments

// What both passes read of edges and of the table.
struct EdgeArguments {
    Long n_types;
    const int* __restrict__ row_ptr;              // [num_receivers + 1] first edge
    const int* __restrict__ active;               // [num_edges] edges, or edges of pairs, by length
    const int* __restrict__ num_active;           // [num_receivers], or [num_groups]
    const int* __restrict__ sender;               // [num_edges] row of x
    const int* __restrict__ sender_type;          // [num_edges]
    const int* __restrict__ types;                // [num_nodes]
    const T* __restrict__ unit;                   // [num_edges * 3]
    const double* __restrict__ length;            // [num_edges] Å
    const mdcg::TableEntry* __restrict__ places;  // [n_types * n_types]
    const T* __restrict__ table;  // [num_rows * Column::PAIRS * Problem::WEIGHTS * 2]
    const T* __restrict__ x;      // [num_senders * Problem::IN_WIDTH]
};

// ---- weights

// A row of the table holds items 2 k and 2 k + 1 of every column, k after k.
typedef mdcg::TableColumn<Problem::DEGREE, T> Column;
struct alignas(2 * sizeof(T)) ColumnPair {
    T v[2];
};
// Pairs of neighbouring channels.
template <int CHANNELS>
struct alignas(CHANNELS * sizeof(ColumnPair) < 16 ? CHANNELS * sizeof(ColumnPair) : 16)
    ColumnPairs {
    ColumnPair v[CHANNELS];
};

// The polynomials of a path's weights, for the channels of a lane.
template <int CHANNELS>
struct Polynomials {
    ColumnPairs<CHANNELS> pairs[Column::PAIRS];

    // `row` points into a row of the table, to the column of the lane's first channel.
    __device__ __forceinline__ void load(const ColumnPair* row) {
#pragma unroll
        for (int k = 0; k < Column::PAIRS; ++k)
            pairs[k] = *(const ColumnPairs<CHANNELS>*)(row + k * Problem::WEIGHTS);
    }
    // The weight of channel c, and its derivative by z.
    __device__ __forceinline__ void evaluate(int c, T z, T& weight, T& slope) const {
        Column::evaluate(z, [&](int i) { return pairs[i / 2].v[c].v[i % 2]; }, weight, slope);
    }
};

// ---- edges of a batch

// An edge that is being loaded from memory.
struct PrefetchedEdge {
    int edge,
        next = -1;  // numbers of this edge and of the lane's edge of the next batch (-1: unknown)
    int sender, sender_type;
    T unit[3];
    double length;
};

// Loads the lane's edge of a batch, which is number `number` of the `count` edges from `begin` on,
// and the index of the lane's edge of the next batch, `step` edges further. Returns whether the
// lane has an edge. `all`: also loads what only the warp needs that writes the records.
MDCG_INLINE bool prefetch(const EdgeArguments& p, PrefetchedEdge& a, int begin, int number,
                          int count, int step, int lane, bool all) {
    if (lane >= BATCH || number >= count) return false;
    a.edge = a.next >= 0 ? a.next : p.active[begin + number];
    if (number + step < count) a.next = p.active[begin + number + step];
#pragma unroll
    for (int d = 0; d < 3; ++d) a.unit[d] = p.unit[3 * Long(a.edge) + d];
    if (!all) return true;
    a.sender = p.sender[a.edge];
    a.sender_type = p.sender_type[a.edge];
    a.length = p.length[a.edge];
    return true;
}

// Where the table has the weights of an edge.
struct TableLookup {
    int row;
    T z, slope;  // position within the interval, in [-1, 1]; its derivative by the length
};
MDCG_INLINE TableLookup look_up(const EdgeArguments& p, const PrefetchedEdge& a, Long receiver) {
    const mdcg::TableEntry found = p.places[Long(p.types[receiver]) * p.n_types + a.sender_type];
    const double root = sqrt(a.length);
    const double place = root * found.inverse_step + found.offset;
    const bool within = place < found.intervals;  // the cutoff of its types; row 0 is zeros
    const int i = within ? int(place) : 0;
    return {within ? found.row + i : 0, within ? T(2 * (place - i) - 1) : T(0),
            T(found.inverse_step) / T(root)};
}

MDCG_INLINE void load_harmonic_factors(T (&factors)[ATTRIBUTES]) {
    each<ATTRIBUTES>([&](auto b) {
        constexpr T factor = Problem::HARMONIC_FACTORS[b];
        factors[b] = factor;
    });
}

// Writes the path matrices of the lane's edge to `row`. The warps of the block share the nonzeros.
template <typename Kernel>
MDCG_INLINE void write_path_matrices(const T (&unit)[3], T* row, int warp) {
    T factors[ATTRIBUTES], y[ATTRIBUTES];
    load_harmonic_factors(factors);
    mdcg::spherical_harmonics(L_MAX, factors, unit, T(1), [&](int i, T value) { y[i] = value; });
    write_path_matrices<Kernel>([&](int b) { return y[b]; }, row, warp);
}

// ---- channels of a lane

// The channels of a lane in warp number `chunk` of a warp task. Lanes beyond the last channel
// (`inside` is false) read channels of other lanes, and store nothing.
template <typename Task>
struct LaneChannels {
    typedef Vec<Task::CHANNELS> Values;
    static constexpr int PER_WARP = 32 * Task::CHANNELS;
    static constexpr bool WHOLE = Task::MUL == PER_WARP * Task::NUM_WARPS;
    int first;
    bool inside;

    __device__ __forceinline__ LaneChannels(int chunk, int lane)
        : first(chunk * PER_WARP + lane * Task::CHANNELS), inside(WHOLE || first < Task::MUL) {
        if (!WHOLE) first = min(first, Task::MUL - Task::CHANNELS);
    }
    __device__ __forceinline__ Values or_zeros(Values values) const {
        return WHOLE || inside ? values : Values();
    }
    __device__ __forceinline__ void write(T* to, Values values, bool add) const {
        if (!WHOLE && !inside) return;
        if (add) values = *(const Values*)to + values;
        *(Values*)to = values;
    }
};

// Returns the address that it is given. NOTES: the compiler no longer knows how the address was
// computed, so it keeps it in a register instead of computing it again for every edge.
MDCG_INLINE const T* kept_address(const T* address) {
#ifndef __HIP__
    asm("" : "+l"(address));
    __builtin_assume(__isGlobal(address));
#endif
    return address;
}

// Runs `body` for the task of a warp of the block.
template <typename Task, typename... Others, typename Body>
MDCG_INLINE void run_task(int warp, const Body& body) {
    if constexpr (sizeof...(Others) > 0) {
        if (warp < Task::FIRST_WARP + Task::NUM_WARPS)
            body(Task());
        else
            run_task<Others...>(warp, body);
    } else {
        body(Task());
    }
}
