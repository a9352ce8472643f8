// Edges on a device: all of the list, skin included.
//
// Those longer than r_max stay, with zero harmonics and weights. So all sizes are known
// on the host, and what is enqueued for one step can be replayed for the next.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/sort.hpp"
#include "engine/graph.hpp"

namespace mdcg {

// Whole receivers, with few enough edges for what is kept per edge to stay in the cache. Chunks
// cover all local nodes, also those without edges.
struct CudaChunk {
    std::int32_t first_receiver, num_receivers;
    std::int32_t first_edge, num_edges;
};

// Types of the ends of edges, each pair once.
struct TypePairs {
    std::vector<std::int32_t> receiver, sender;

    void add(std::int32_t to, std::int32_t from) {
        receiver.push_back(to);
        sender.push_back(from);
    }
};

// Chunks that follow each other, whose rows of pairs are summed by sender at once: rows are several
// times fewer than edges. Senders and rows are parts of DeviceEdges's arrays below.
struct ReceiverRange {
    std::size_t first_chunk = 0, end_chunk = 0;
    std::int32_t first_receiver = 0, num_receivers = 0;
    std::int32_t first_edge = 0, num_edges = 0;
    std::int32_t first_sender = 0, num_senders = 0;
    std::int32_t first_row = 0, num_rows = 0;  // of pairs
};

// What a layer wants of a list: no pairs; pairs of an edge and its reverse; or edges one by one, in
// the order of pairs, because an edge and its reverse have different weights. Where layers differ,
// the last of these counts.
enum class EdgeOrder { any, paired, single };

// A list is made in steps: reserve_nodes, which decides `group`, and row_ptr and types are written;
// take_rows, during which sender (and image) are written; complete. What fits into the memory there
// is keeps its address.
class DeviceEdges {
public:
    // Edges of a chunk, unless one receiver has more: by what is kept for each.
    static constexpr std::int64_t FEWEST_CHUNK_EDGES = 8192;
    // Tests set these, for systems of few edges: a chunk has at most so many edges, unless one
    // receiver or group has more; and lists of at most so many are small (see CudaExecutor).
    static std::int64_t most_chunk_edges, most_small_edges;
    // Receivers of a group, for which generated kernels have room
    // (mdcg/codegen/conv/table_blocks.py).
    static constexpr std::int64_t GROUP = 3;
    // With fewer receivers, a warp for each leaves most of a device idle, so that several warps
    // share the edges of a receiver. Tests set this, too.
    static std::int64_t fewest_filling;

    explicit DeviceEdges(CudaKernels& kernels);

    // All steps for a graph of the host that Graph::update_order has put in order. `reversed` is
    // explained at `complete`. Synchronizes.
    void upload(const Graph& graph, int num_types, bool reversed, const DeviceStream& stream);
    // `fresh`: for the first time after upload. Synchronizes where anything is copied. Changes
    // `shift`, `image` and `table`, which are in captured steps.
    void upload_shifts(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);

    void reserve_nodes(std::int64_t local, std::int64_t nodes);
    // What the device has counted: row_ptr and total.
    struct Count {
        // [num_nodes] the caller's number of each node, which the stream writes to memory of the
        // host; null: first_number and those that follow it.
        const std::int32_t* numbers;
        std::int32_t first_number;
        double reach;                 // Å, within which neighbours were counted
        const char *many, *instead;   // start and end of the error for too many edges
        std::function<void()> write;  // enqueues the kernel that writes sender (and image)
    };
    // Waits for the stream, reserves memory for the edges and calls `write`. Returns the caller's
    // number of each node. Throws EngineError or GeometryError where there are too many edges,
    // before it reserves any.
    std::vector<std::int32_t> take_rows(const Count& count, const DeviceStream& stream);
    // Room for the shift of each edge, for Count::write.
    double* reserve_shifts();
    // Everything else; `host_types` [num_nodes], in any order that has local nodes first. Where
    // `reversed`, the reverse of each edge between local nodes is in the list, with the opposite
    // vector; rounding may have left out some that are as long as the list reaches. Waits for the
    // stream, and leaves last kernels on it.
    void complete(const std::int32_t* host_types, int num_types, bool reversed,
                  const DeviceStream& stream);

    // The ends of an edge, read from the device.
    std::int32_t receiver_of(std::int32_t edge) const;
    std::int32_t sender_of(std::int32_t edge, const DeviceStream& stream) const;

    // How the next list is made.
    std::int64_t chunk_edges = FEWEST_CHUNK_EDGES;
    EdgeOrder edge_order = EdgeOrder::any;
    bool needs_chunks = false;    // ranges are chunks: a layer writes rows of a chunk by `place`
    bool by_sender_type = false;  // see by_length
    // If there are several ranges, each has at most so many rows of pairs, unless one chunk has
    // more. A list with at most twice as many, by estimate or count, is one range.
    std::int64_t max_range_rows() const { return chunk_edges + chunk_edges / 2; }
    int gradient_streams = 1;  // streams whose kernels add to gradients of edges at the same time
    std::int64_t num_local = 0, num_nodes = 0, num_edges = 0;
    std::vector<CudaChunk> chunks;
    std::vector<ReceiverRange> ranges;
    std::int32_t longest_chunk = 0;  // edges

    // On the device.
    unsigned long long* total = nullptr;    // [1] edges of a list that the device makes
    std::int32_t* row_ptr = nullptr;        // [num_local + 1] edges by receiver
    std::int32_t* sender = nullptr;         // [num_edges]
    std::int32_t* receiver = nullptr;       // [num_edges]
    std::int32_t* sender_type = nullptr;    // [num_edges]
    std::int32_t* receiver_type = nullptr;  // [num_edges]
    // Added to pos[receiver] - pos[sender], at most one of them not null: [num_edges][3] Å; or
    // [num_edges] rows of a table [..][3] Å, or, where they are packed, numbers of 10 bits of the
    // three rows, less 512.
    const double* shift = nullptr;
    const std::int32_t* image = nullptr;
    const double* table = nullptr;
    bool packed = false;
    std::int32_t* image_rows = nullptr;  // room for them
    std::int32_t* identity = nullptr;    // [num_edges] 0, 1, 2, ..: edges of generated kernels
    // By sender inside each range: the place of an edge; senders in order, and where the places of
    // each begin (from first_pointer on: one more per range). If there is one range, all nodes
    // count as its senders, also those without edges.
    std::int32_t* place = nullptr;             // [num_edges], relative to the range
    std::int32_t* edge_of_place = nullptr;     // [num_edges]; of one range the same as by_sender
    std::int32_t* range_sender = nullptr;      // node; null: one range
    std::int32_t* range_sender_ptr = nullptr;  // relative to the range
    // Pairs, unless edge_order is any: `group` receivers that follow each other are a group (chunks
    // are whole groups; 0: there are no pairs), and a pair is listed with one of its two edges, in
    // the group of that edge's receiver. Edges without a reverse between local nodes are listed
    // alone. A group writes one row for each of its senders. Rows are in order of range, sender and
    // group.
    std::int64_t group = 0;
    std::int64_t* one_way = nullptr;   // [1] not 0: all edges are listed alone
    std::int32_t* by_group = nullptr;  // [num_edges] edges by group, then by sender and receiver
    std::int32_t* pair_row = nullptr;  // [num_edges] their rows; -1: it is not listed
    std::int32_t* range_row_ptr = nullptr;  // rows of each range_sender
    // All edges by sender, for forces.
    std::int32_t* sender_ptr = nullptr;  // [num_nodes + 1]
    std::int32_t* by_sender = nullptr;   // [num_edges] edges
    std::int32_t* types = nullptr;       // [num_nodes]
    // Nodes by type: local ones first, then ghosts.
    std::int32_t* by_type = nullptr;             // [num_nodes]
    std::vector<std::int32_t> local_type_first;  // [T + 1], host
    std::vector<std::int32_t> ghost_type_first;  // [T + 1], host, from num_local
    TypePairs pairs;                             // host

    // Made by each step from positions.
    double* positions = nullptr;  // [num_nodes][3]
    void* unit = nullptr;         // [num_edges][3] in T; zeros from r_max on
    double* length = nullptr;     // [num_edges] Å; longer than any cutoff from r_max on
    // Edges of receiver r that are shorter than r_max, ascending: the first num_active[r] from
    // active + row_ptr[r].
    std::int32_t* active = nullptr;  // [num_edges]
    // The same, the shortest first (lengths that differ by less than about r_max / 2^17 may be
    // exchanged); where radial tables depend on the sender, by its type modulo 128 first, so that
    // edges which read the same row follow each other. Of a receiver with more than 256 edges as
    // above.
    std::int32_t* by_length = nullptr;
    std::int32_t* num_active = nullptr;  // [num_local]
    // Active pairs of a group, in the order of by_group: the first num_pairs[group] from
    // active_pairs + row_ptr[first receiver of the group].
    std::int32_t* active_pairs = nullptr;     // [num_edges] edges
    std::int32_t* active_pair_row = nullptr;  // [num_edges] their rows
    std::int32_t* num_pairs = nullptr;        // [num_local] by group
    std::int32_t* active_rows = nullptr;      // [rows] 0 or 1

    // Rows that all groups write; 0 without pairs.
    std::int64_t num_rows() const {
        return ranges.empty() ? 0 : std::int64_t(ranges.back().first_row) + ranges.back().num_rows;
    }
    // Of a range, in range_sender_ptr and range_row_ptr.
    std::int64_t first_pointer(std::size_t range) const {
        return ranges[range].first_sender + static_cast<std::int64_t>(range);
    }
    std::size_t gradient_bytes() const {
        return static_cast<std::size_t>(3 * num_edges * gradient_streams * item_bytes_);
    }

    std::size_t bytes() const;

private:
    void reserve_edges(std::int64_t edges);
    void make_chunks();
    void upload_images(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);
    void count_types(const std::int32_t* host_types, int num_types);
    // `ends`: for each range, the number of the chunk behind its last one.
    void make_ranges(const std::vector<std::int64_t>& ends);
    void sort_by_type(int num_types, const DeviceStream& stream);
    void sort_by_sender(int num_types, bool reversed, const DeviceStream& stream);

    int item_bytes_;
    CudaSort sort_;
    CudaFunction expand_rows_, find_senders_, find_ranges_, order_groups_, find_runs_,
        count_senders_, write_senders_, order_rows_;
    DeviceMemory nodes_, edges_, senders_, small_, shift_memory_, table_memory_;
    PinnedMemory staging_;  // counts that are read back while a list is made
    std::int64_t node_capacity_ = 0, edge_capacity_ = 0;
    char* workspace_ = nullptr;          // in the place of what steps make
    std::vector<std::int32_t> row_ptr_;  // host
    std::vector<double> shift_, table_;
    std::vector<std::int32_t> image_;
};

}  // namespace mdcg
