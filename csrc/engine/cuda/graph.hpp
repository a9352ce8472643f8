// Edges on a device: one slot for every edge of the list, skin included.
//
// Edges longer than r_max keep their slot, with zero harmonics and weights. So all sizes are known
// on the host, and what is enqueued for one step can be replayed for the next.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cuda_memory.hpp"
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

class CudaGraph {
public:
    // Slots of a chunk, unless one receiver has more: by what is kept for each.
    static constexpr std::int64_t FEWEST_CHUNK_SLOTS = 8192, MOST_CHUNK_SLOTS = 131072;

    CudaGraph(int device, int item_bytes)
        : item_bytes_(item_bytes), memory_(device), shift_memory_(device), image_memory_(device) {}

    // After the host's graph was put in order anew (Graph::update_order). Synchronizes.
    void upload(const Graph& graph, int num_types, const CudaStream& stream);
    // `fresh`: for the first time after upload. Synchronizes where anything is copied. Changes
    // `shift`, which is in captured steps. Returns whether it is to be filled from `image` and
    // `image_shift` now.
    bool upload_shifts(const Graph& graph, const System& system, bool fresh,
                       const CudaStream& stream);

    std::int64_t chunk_slots = FEWEST_CHUNK_SLOTS;  // of the next list
    std::int64_t num_local = 0, num_nodes = 0, num_slots = 0;
    std::vector<CudaChunk> chunks;
    std::int32_t longest_chunk = 0;  // slots
    std::int32_t most_senders = 0;   // of a chunk

    // On the device.
    const std::int32_t* row_ptr = nullptr;        // [num_local + 1] slots by receiver
    const std::int32_t* sender = nullptr;         // [num_slots]
    const std::int32_t* receiver = nullptr;       // [num_slots]
    const std::int32_t* sender_type = nullptr;    // [num_slots]
    const std::int32_t* receiver_type = nullptr;  // [num_slots]
    // [num_slots][3] Å added to pos[receiver] - pos[sender]; null: nothing is
    const double* shift = nullptr;
    const std::int32_t* image = nullptr;  // [num_slots] row of image_shift, where there are any
    const double* image_shift = nullptr;  // [images][3]
    const std::int32_t* slot = nullptr;   // [num_slots] 0, 1, 2, ..: edges of generated kernels
    // By sender inside each chunk: the row of a chunk's buffer that a slot writes; senders in
    // order, and where the rows of each begin (first_sender + chunk number: one more per chunk).
    const std::int32_t* place = nullptr;             // [num_slots], relative to the chunk
    const std::int32_t* slot_of_place = nullptr;     // [num_slots], from the chunk's first slot
    const std::int32_t* chunk_sender = nullptr;      // node
    const std::int32_t* chunk_sender_ptr = nullptr;  // relative to the chunk
    // All slots by sender, for forces.
    const std::int32_t* sender_ptr = nullptr;  // [num_nodes + 1]
    const std::int32_t* by_sender = nullptr;   // [num_slots] slots
    const std::int32_t* types = nullptr;       // [num_nodes]
    // Nodes by type: local ones first, then ghosts.
    const std::int32_t* by_type = nullptr;       // [num_nodes]
    std::vector<std::int32_t> local_type_first;  // [T + 1], host
    std::vector<std::int32_t> ghost_type_first;  // [T + 1], host, from num_local
    TypePairs pairs;                             // host

    // Made by each step from positions.
    double* positions = nullptr;  // [num_nodes][3]
    void* unit = nullptr;         // [num_slots][3] in T; zeros from r_max on
    double* length = nullptr;     // [num_slots] Å; longer than any cutoff from r_max on
    // Slots of receiver r that are shorter than r_max, ascending: the first num_live[r] from
    // live + row_ptr[r].
    std::int32_t* live = nullptr;      // [num_slots]
    std::int32_t* by_length = nullptr;  // the same, the shortest first
    std::int32_t* num_live = nullptr;   // [num_local]

    std::size_t bytes() const {
        return memory_.bytes() + shift_memory_.bytes() + image_memory_.bytes();
    }
    void release() {
        memory_.release();
        shift_memory_.release();
        image_memory_.release();
    }

private:
    void make_chunks(const Graph& graph);
    void sort_by_sender(const Graph& graph);
    void sort_by_type(const Graph& graph, int num_types);
    bool upload_images(const Graph& graph, const System& system, bool fresh,
                       const CudaStream& stream);

    int item_bytes_;
    CudaMemory memory_, shift_memory_, image_memory_;
    // Made on the host, kept for their memory.
    std::vector<std::int32_t> row_ptr_, receiver_, sender_type_, receiver_type_, slot_, place_,
        slot_of_place_, chunk_sender_, chunk_sender_ptr_, sender_ptr_, by_sender_, by_type_,
        chunk_of_, image_;
    std::vector<double> shift_, image_shift_;
};

}  // namespace mdcg
