// Edges on a device: all edges of the list, skin included.
//
// Edges longer than r_max stay, with zero harmonics and weights. So the host knows all sizes, and
// what is enqueued for one step can be replayed for the next.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/sort.hpp"
#include "engine/graph.hpp"
#include "kernels/geometry.hpp"

namespace mdcg {

// Types of the ends of edges, each pair once.
struct TypePairs {
    std::vector<std::int32_t> receiver, sender;

    void add(std::int32_t to, std::int32_t from) {
        receiver.push_back(to);
        sender.push_back(from);
    }
    // The types of senders, ascending, each once.
    std::vector<std::int32_t> sender_types() const {
        const std::set<std::int32_t> found(sender.begin(), sender.end());
        return {found.begin(), found.end()};
    }
};

// Neighbouring receivers with all of their edges. The rows of a range's pairs are summed by sender
// together.
struct ReceiverRange {
    std::int32_t first_receiver = 0, num_receivers = 0;
    std::int32_t first_edge = 0, num_edges = 0;
    // The range's part of DeviceEdges::range_sender, and of the rows of pairs.
    std::int32_t first_sender = 0, num_senders = 0;
    std::int32_t first_row = 0, num_rows = 0;
};

// What a layer needs from a list: no pairs; pairs of an edge and its reverse; or single edges in
// the order of pairs, because an edge and its reverse have different weights. If layers differ, the
// largest of these values counts.
enum class EdgeOrder { any, paired, single };

// A list is made in steps: reserve_nodes, which decides `group`; then the caller writes row_ptr and
// types; take_rows, which calls the caller to write sender (and image); complete. Arrays that fit
// into the memory that is already there keep their addresses.
class DeviceEdges {
public:
    // Upper limits of `range_edges` below, and of the edges of a small list (see CudaExecutor).
    // Tests lower them, for systems of few edges.
    static std::int64_t most_range_edges, most_small_edges;
    // Receivers of a group, for which generated kernels have room
    // (mdcg/codegen/conv/table_blocks.py).
    static constexpr std::int64_t GROUP = 3;
    // With fewer receivers, a warp per receiver leaves most of a device idle, so several warps
    // share the edges of a receiver. Tests set this, too.
    static std::int64_t fewest_filling;

    explicit DeviceEdges(CudaKernels& kernels);

    // Does all steps for a graph of the host that Graph::update_order has put in order. `reversed`
    // is explained at `complete`. Synchronizes.
    void upload(const Graph& graph, int num_types, bool reversed, const DeviceStream& stream);
    // `fresh`: the first call after upload. Synchronizes if anything is copied. Changes `shifts`,
    // whose addresses captured steps contain.
    void upload_shifts(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);

    void reserve_nodes(std::int64_t local, std::int64_t nodes);
    // How take_rows continues after the device has counted edges in row_ptr and total.
    struct Count {
        // [num_nodes] the caller's number of each node, which the stream writes to memory of the
        // host; null: first_number, first_number + 1, ...
        const std::int32_t* numbers;
        std::int32_t first_number;
        double reach;                 // Å, within which neighbours were counted
        const char *many, *instead;   // start and end of the error for too many edges
        std::function<void()> write;  // enqueues the kernel that writes sender (and image)
    };
    // Waits for the stream, reserves memory for the edges and calls `write`. Returns the caller's
    // number of each node. Throws EngineError or GeometryError if there are too many edges, before
    // it reserves memory.
    std::vector<std::int32_t> take_rows(const Count& count, const DeviceStream& stream);
    // Reserves memory for the shift of each edge, for Count::write.
    double* reserve_shifts();
    // Makes the rest of the list. `host_types` [num_nodes] may be in any order that has local nodes
    // first. `reversed`: the list has the reverse of each edge between local nodes, with the
    // opposite vector, but rounding may have left out some that are as long as the list reaches.
    // Waits for the stream, but not for the last kernels that it enqueues.
    void complete(const std::int32_t* host_types, int num_types, bool reversed,
                  const DeviceStream& stream);

    // The ends of an edge, read from the device.
    std::int32_t receiver_of(std::int32_t edge) const;
    std::int32_t sender_of(std::int32_t edge, const DeviceStream& stream) const;

    // Divides the receivers into ranges of nearly equal numbers of edges, and of at most
    // `most_edges` unless one group (without pairs: one receiver) has more. A range has whole
    // groups. The numbers of senders and rows are left at 0.
    std::vector<ReceiverRange> divided(std::int64_t most_edges) const;

    static constexpr std::size_t ALL = std::numeric_limits<std::size_t>::max();
    // Called with the bytes that memory for edges, or of an operation, must grow by. Returns how
    // much more it may grow, or throws.
    std::function<std::size_t(std::size_t)> before_growth = [](std::size_t) { return ALL; };
    // How the next list is made.
    EdgeOrder edge_order = EdgeOrder::any;
    bool by_sender_type = false;  // see by_length
    // A list whose pairs have at most 3 * range_edges rows, by estimate or count, is one range.
    // Otherwise a range has at most 1.5 * range_edges rows, unless a range of divided(range_edges)
    // has more.
    std::int64_t range_edges = 8192;
    int gradient_streams = 1;  // streams whose kernels add to gradients of edges at the same time
    std::int64_t num_local = 0, num_nodes = 0, num_edges = 0;
    std::int64_t first_inner = 0;       // local nodes from here on have no ghosts as neighbours
    std::vector<ReceiverRange> ranges;  // one, or those whose rows fit into the buffers

    // On the device.
    unsigned long long* total = nullptr;    // [1] edges of a list that the device makes
    std::int32_t* row_ptr = nullptr;        // [num_local + 1] edges by receiver
    std::int32_t* sender = nullptr;         // [num_edges]
    std::int32_t* receiver = nullptr;       // [num_edges]
    std::int32_t* sender_type = nullptr;    // [num_edges]
    std::int32_t* receiver_type = nullptr;  // [num_edges]
    EdgeShifts shifts{};                    // added to pos[receiver] - pos[sender]
    std::int32_t* image_rows = nullptr;     // [num_edges] memory for shifts.image
    // Pairs, unless edge_order is any. `group` neighbouring receivers form a group (0: there are no
    // pairs). A pair is listed as one of its two edges, in the group of that edge's receiver. Edges
    // between local nodes without a reverse are listed alone. A group writes one row for each of
    // its senders. Rows are sorted by range, then sender, then group.
    std::int64_t group = 0;
    std::int64_t* one_way = nullptr;   // [1] not 0: all edges are listed alone
    std::int32_t* by_group = nullptr;  // [num_edges] edges by group, then by sender and receiver
    std::int32_t* pair_row = nullptr;  // [num_edges] rows of these edges; -1: not listed
    // [sum of num_senders] nodes that send to a range, ascending, one range after the other. Null:
    // there is one range, and all nodes count as its senders, also those without edges.
    std::int32_t* range_sender = nullptr;
    // [sum over ranges of num_senders + 1] first row of each sender, then the end of the range.
    std::int32_t* range_row_ptr = nullptr;
    // All edges by sender.
    std::int32_t* sender_ptr = nullptr;  // [num_nodes + 1]
    std::int32_t* by_sender = nullptr;   // [num_edges] edges, ascending for each sender
    std::int32_t* types = nullptr;       // [num_nodes]
    // Local nodes sorted by type, then ghosts sorted by type.
    std::int32_t* by_type = nullptr;             // [num_nodes]
    std::vector<std::int32_t> local_type_first;  // [T + 1], host
    std::vector<std::int32_t> ghost_type_first;  // [T + 1], host, from num_local
    TypePairs pairs;                             // host

    // Each step makes these from positions.
    double* positions = nullptr;  // [num_nodes][3]
    void* unit = nullptr;         // [num_edges][3] of T; zeros from r_max on
    double* length = nullptr;     // [num_edges] Å; longer than any cutoff from r_max on
    // [num_edges] edges of receiver r that are shorter than r_max, ascending: the first
    // num_active[r] from active + row_ptr[r].
    std::int32_t* active = nullptr;
    // [num_edges] the same edges by length (to about r_max / 2^17). If by_sender_type is set, they
    // are sorted by the sender's type modulo 128 first, so that edges which read the same row of a
    // table follow each other. The edges of a receiver that has more than 256 are ascending
    // instead.
    std::int32_t* by_length = nullptr;
    std::int32_t* num_active = nullptr;  // [num_local]
    // [num_edges] edges that stand for the active pairs of a group, in the order of by_group: the
    // first num_pairs[group] from active_pairs + row_ptr[first receiver of the group].
    std::int32_t* active_pairs = nullptr;
    std::int32_t* active_pair_row = nullptr;  // [num_edges] rows of these pairs
    std::int32_t* num_pairs = nullptr;        // [groups]
    std::int32_t* active_rows = nullptr;      // [num_rows()] 0 or 1

    // Rows that all groups write; 0 without pairs.
    std::int64_t num_rows() const {
        return ranges.empty() ? 0 : std::int64_t(ranges.back().first_row) + ranges.back().num_rows;
    }
    std::size_t gradient_bytes() const {
        return static_cast<std::size_t>(3 * num_edges * gradient_streams * item_bytes_);
    }

    std::size_t bytes() const;

private:
    void reserve_edges(std::int64_t edges);
    void upload_images(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);
    void sort_by_type(const std::int32_t* host_types, int num_types, const DeviceStream& stream);
    void order_edges(int num_types, bool reversed, const DeviceStream& stream);

    int item_bytes_;
    CudaSort sort_;
    CudaFunction expand_rows_, find_senders_, find_ranges_, order_groups_, find_runs_,
        count_senders_, write_senders_, order_rows_;
    DeviceMemory nodes_, edges_, senders_, small_, shift_memory_, table_memory_;
    PinnedMemory staging_;  // counts that are read back while a list is made
    std::int64_t node_capacity_ = 0, edge_capacity_ = 0;
    char* workspace_ = nullptr;          // shares memory with what steps make
    std::vector<std::int32_t> row_ptr_;  // host
    std::vector<double> shift_, table_;
    std::vector<std::int32_t> image_;
};

}  // namespace mdcg
