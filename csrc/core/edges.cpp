#include "core/edges.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "core/integers.hpp"

namespace mdcg {

namespace {

template <typename Index>
std::vector<std::int32_t> checked(const Index* index, std::int64_t count, std::int64_t limit,
                                  const char* name) {
    if (count > std::numeric_limits<std::int32_t>::max())
        throw std::invalid_argument("the graph has " + std::to_string(count) +
                                    " edges, expected at most 2^31 - 1: split it");
    for (std::int64_t e = 0; e < count; ++e)
        if (index[e] < 0 || index[e] >= limit)
            throw std::invalid_argument(std::string(name) + "[" + std::to_string(e) + "] is " +
                                        std::to_string(index[e]) + ", expected 0 <= " + name +
                                        " < " + std::to_string(limit));
    return std::vector<std::int32_t>(index, index + count);
}

// Turns counts [n + 1], with the count of bin i at i + 1, into first positions.
void to_first_positions(std::vector<std::int64_t>& counts) {
    for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

}  // namespace

template <typename Index>
EdgeList::EdgeList(const Index* senders, const Index* receivers, std::int64_t num_edges,
                   std::int64_t all_senders, std::int64_t all_receivers)
    : sender(checked(senders, num_edges, all_senders, "sender")),
      receiver(checked(receivers, num_edges, all_receivers, "receiver")),
      num_senders(all_senders),
      num_receivers(all_receivers) {}

template EdgeList::EdgeList(const std::int32_t*, const std::int32_t*, std::int64_t, std::int64_t,
                            std::int64_t);
template EdgeList::EdgeList(const std::int64_t*, const std::int64_t*, std::int64_t, std::int64_t,
                            std::int64_t);

ReceiverOrder order_by_receiver(const EdgeList& edges, std::int64_t edges_per_task) {
    const std::size_t n = edges.sender.size();
    ReceiverOrder out;
    out.order.resize(n);
    out.sender.resize(n);
    out.row_ptr.assign(size(edges.num_receivers) + 1, 0);
    for (const std::int32_t r : edges.receiver) ++out.row_ptr[size(r) + 1];
    to_first_positions(out.row_ptr);
    std::vector<std::int64_t> next(out.row_ptr.begin(), out.row_ptr.end() - 1);
    for (std::size_t e = 0; e < n; ++e) {
        const auto at = size(next[size(edges.receiver[e])]++);
        out.order[at] = narrow(e);
        out.sender[at] = edges.sender[e];
    }
    out.task_ptr.push_back(0);
    std::int64_t first = 0;
    for (std::int64_t row = 0; row < edges.num_receivers; ++row) {
        const std::int64_t end = out.row_ptr[size(row) + 1];
        // a receiver also costs a row of output, about as much as one edge
        if (end - first + (row + 1 - out.task_ptr.back()) >= edges_per_task ||
            row + 1 == edges.num_receivers) {
            out.task_ptr.push_back(row + 1);
            first = end;
        }
    }
    return out;
}

BlockOrder order_by_block(const EdgeList& edges, const ReceiverOrder& by_receiver,
                          std::int64_t block_size) {
    const std::size_t n = edges.sender.size();
    const std::int64_t num_blocks = (edges.num_senders + block_size - 1) / block_size;
    const std::int64_t receiver_blocks = (edges.num_receivers + block_size - 1) / block_size;
    const std::int64_t num_rounds = std::max<std::int64_t>({num_blocks, receiver_blocks, 1});
    BlockOrder out;
    out.order.resize(n);
    out.sender.resize(n);
    out.receiver.resize(n);
    out.block_ptr.assign(size(num_blocks) + 1, 0);
    for (const std::int32_t s : by_receiver.sender) ++out.block_ptr[size(s / block_size) + 1];
    to_first_positions(out.block_ptr);
    std::vector<std::int64_t> next(out.block_ptr.begin(), out.block_ptr.end() - 1);
    for (std::size_t i = 0; i < n; ++i) {
        const auto block = size(by_receiver.sender[i] / block_size);
        const auto at = size(next[block]++);
        out.order[at] = by_receiver.order[i];
        out.sender[at] = by_receiver.sender[i];
        out.receiver[at] = edges.receiver[size(by_receiver.order[i])];
    }

    struct Tile {
        std::int64_t round, begin, end;
    };
    std::vector<Tile> tiles;
    for (std::int64_t block = 0; block < num_blocks; ++block) {
        const std::int64_t stop = out.block_ptr[size(block) + 1];
        std::int64_t e = out.block_ptr[size(block)];
        while (e < stop) {
            const std::int64_t row_block = out.receiver[size(e)] / block_size;
            const std::int64_t begin = e;
            while (e < stop && out.receiver[size(e)] / block_size == row_block) ++e;
            tiles.push_back({(row_block - block + num_rounds) % num_rounds, begin, e});
        }
    }
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const Tile& a, const Tile& b) { return a.round < b.round; });
    out.round_ptr.push_back(0);
    for (std::size_t t = 0; t < tiles.size(); ++t) {
        out.tiles.push_back(tiles[t].begin);
        out.tiles.push_back(tiles[t].end);
        if (t + 1 == tiles.size() || tiles[t + 1].round != tiles[t].round)
            out.round_ptr.push_back(static_cast<std::int64_t>(t) + 1);
    }
    return out;
}

}  // namespace mdcg
