// Orders of edges in which one thread sums each result, in a fixed order, without atomics.
#pragma once

#include <cstdint>
#include <vector>

namespace mdcg {

// A copy of a graph's edges.
struct EdgeList {
    std::vector<std::int32_t> sender;    // [num_edges], 0 <= sender < num_senders
    std::vector<std::int32_t> receiver;  // [num_edges], 0 <= receiver < num_receivers
    std::int64_t num_senders, num_receivers;

    // Index is int32_t or int64_t. Throws std::invalid_argument naming the first index out of
    // range.
    template <typename Index>
    EdgeList(const Index* sender, const Index* receiver, std::int64_t num_edges,
             std::int64_t num_senders, std::int64_t num_receivers);
};

// Edges grouped by receiver; inside a group they keep the given order.
struct ReceiverOrder {
    std::vector<std::int32_t> order;     // [num_edges], position in the given list
    std::vector<std::int32_t> sender;    // [num_edges]
    std::vector<std::int64_t> row_ptr;   // [num_receivers + 1]
    std::vector<std::int64_t> task_ptr;  // [num_tasks + 1], first receiver of each task
};

// Edges grouped by blocks of consecutive senders, and by receiver inside a block. A tile is the
// part of a block whose receivers lie in one block of consecutive receivers. Tiles of one round
// share neither senders nor receivers.
struct BlockOrder {
    std::vector<std::int32_t> order;      // [num_edges], position in the given list
    std::vector<std::int32_t> sender;     // [num_edges]
    std::vector<std::int32_t> receiver;   // [num_edges]
    std::vector<std::int64_t> block_ptr;  // [num_blocks + 1]
    std::vector<std::int64_t> tiles;      // [num_tiles][2], first and last + 1 edge
    std::vector<std::int64_t> round_ptr;  // [num_rounds + 1], in tiles
};

ReceiverOrder order_by_receiver(const EdgeList& edges, std::int64_t edges_per_task);

BlockOrder order_by_block(const EdgeList& edges, const ReceiverOrder& by_receiver,
                          std::int64_t block_size);

}  // namespace mdcg
