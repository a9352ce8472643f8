// Edges on a device: one slot for every edge of the list, skin included.
//
// Edges longer than r_max keep their slot, with zero harmonics and weights. So all sizes are known
// on the host, and what is enqueued for one step can be replayed for the next.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/sort.hpp"
#include "engine/graph.hpp"

namespace mdcg {

// Whole receivers, with few enough slots for what is kept per edge to stay in the cache. Chunks
// cover all local nodes, also those without edges.
struct CudaChunk {
    std::int32_t first_receiver, num_receivers;
    std::int32_t first_slot, num_slots;
    // Slots of the chunk by sender: parts of CudaGraph's arrays below.
    std::int32_t first_sender, num_senders;
};

// Types of the ends of edges, each pair once.
struct TypePairs {
    std::vector<std::int32_t> receiver, sender;
};

// A list is made in steps: reserve_nodes, and row_ptr and types are written; reserve_slots, and
// sender (and image) are written; complete. What fits into the memory there is keeps its address.
class CudaGraph {
public:
    // Slots of a chunk, unless one receiver has more: by what is kept for each.
    static constexpr std::int64_t FEWEST_CHUNK_SLOTS = 8192, MOST_CHUNK_SLOTS = 131072;

    explicit CudaGraph(CudaKernels& kernels);

    // After the host's graph was put in order anew (Graph::update_order): all steps. Synchronizes.
    void upload(const Graph& graph, int num_types, const DeviceStream& stream);
    // `fresh`: for the first time after upload. Synchronizes where anything is copied. Changes
    // `shift`, `image` and `table`, which are in captured steps.
    void upload_shifts(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);

    void reserve_nodes(std::int64_t local, std::int64_t nodes);
    // `rows`: what is in row_ptr.
    void reserve_slots(const std::vector<std::int32_t>& rows);
    // Everything else; `host_types` [num_nodes], in any order that has local nodes first. Waits for
    // the stream, and leaves a last kernel on it.
    void complete(const std::int32_t* host_types, int num_types, const DeviceStream& stream);

    // The ends of a slot, from the device.
    std::int32_t receiver_of(std::int32_t slot) const;
    std::int32_t sender_of(std::int32_t slot, const DeviceStream& stream) const;

    std::int64_t chunk_slots = FEWEST_CHUNK_SLOTS;  // of the next list
    std::int64_t num_local = 0, num_nodes = 0, num_slots = 0;
    std::vector<CudaChunk> chunks;
    std::int32_t longest_chunk = 0;  // slots
    std::int32_t most_senders = 0;   // of a chunk

    // On the device.
    std::int32_t* row_ptr = nullptr;        // [num_local + 1] slots by receiver
    std::int32_t* sender = nullptr;         // [num_slots]
    std::int32_t* receiver = nullptr;       // [num_slots]
    std::int32_t* sender_type = nullptr;    // [num_slots]
    std::int32_t* receiver_type = nullptr;  // [num_slots]
    // Added to pos[receiver] - pos[sender], at most one of them not null: [num_slots][3] Å; or
    // [num_slots] rows of a table [..][3] Å, or, where they are packed, numbers of 10 bits of the
    // three rows, less 512.
    const double* shift = nullptr;
    const std::int32_t* image = nullptr;
    const double* table = nullptr;
    bool packed = false;
    std::int32_t* image_rows = nullptr;  // room for them
    std::int32_t* slot = nullptr;        // [num_slots] 0, 1, 2, ..: edges of generated kernels
    // By sender inside each chunk: the row of a chunk's buffer that a slot writes; senders in
    // order, and where the rows of each begin (first_sender + chunk number: one more per chunk).
    std::int32_t* place = nullptr;             // [num_slots], relative to the chunk
    std::int32_t* slot_of_place = nullptr;     // [num_slots], from the chunk's first slot
    std::int32_t* chunk_sender = nullptr;      // node
    std::int32_t* chunk_sender_ptr = nullptr;  // relative to the chunk
    // All slots by sender, for forces.
    std::int32_t* sender_ptr = nullptr;  // [num_nodes + 1]
    std::int32_t* by_sender = nullptr;   // [num_slots] slots
    std::int32_t* types = nullptr;       // [num_nodes]
    // Nodes by type: local ones first, then ghosts.
    std::int32_t* by_type = nullptr;             // [num_nodes]
    std::vector<std::int32_t> local_type_first;  // [T + 1], host
    std::vector<std::int32_t> ghost_type_first;  // [T + 1], host, from num_local
    TypePairs pairs;                             // host

    // Made by each step from positions.
    double* positions = nullptr;  // [num_nodes][3]
    void* unit = nullptr;         // [num_slots][3] in T; zeros from r_max on
    double* length = nullptr;     // [num_slots] Å; longer than any cutoff from r_max on
    // Slots of receiver r that are shorter than r_max, ascending: the first num_live[r] from
    // live + row_ptr[r].
    std::int32_t* live = nullptr;       // [num_slots]
    std::int32_t* by_length = nullptr;  // the same, the shortest first
    std::int32_t* num_live = nullptr;   // [num_local]

    std::size_t bytes() const;

private:
    void make_chunks();
    void upload_images(const Graph& graph, const System& system, bool fresh,
                       const DeviceStream& stream);
    void count_types(const std::int32_t* host_types, int num_types);
    void sort_by_type(int num_types, const DeviceStream& stream);
    void sort_by_sender(int num_types, const DeviceStream& stream);

    int item_bytes_;
    CudaSort sort_;
    CudaFunction expand_rows_, find_senders_, find_chunks_, find_runs_, count_senders_,
        write_senders_;
    DeviceMemory nodes_, slots_, senders_, small_, shift_memory_, table_memory_;
    std::int64_t node_capacity_ = 0, slot_capacity_ = 0;
    char* workspace_ = nullptr;          // in the place of what steps make
    std::vector<std::int32_t> row_ptr_;  // host
    std::vector<double> shift_, table_;
    std::vector<std::int32_t> image_;
};

}  // namespace mdcg
