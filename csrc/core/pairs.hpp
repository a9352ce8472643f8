// Pairs of edges i -> j and j -> i along one vector. They share everything that depends on its
// length alone.
#pragma once

#include <cstdint>
#include <vector>

#include "core/edges.hpp"

namespace mdcg {

// Values that show whether two edges are the two directions of one pair; T is float or double.
template <typename T>
struct EdgeValues {
    const T* directions;  // [num_edges][direction_stride], the first three of a row are used
    std::int64_t direction_stride;
    const T* features;  // [num_edges][num_features], equal for both directions
    std::int64_t num_features;
};

// Rows of one or two edges.
struct Pairing {
    std::vector<std::int32_t> row;     // [num_edges]
    std::vector<std::int64_t> first;   // [num_rows], an edge of the row
    std::vector<std::int64_t> second;  // [num_rows], its other edge; the same if there is none
};

// Edges grouped by tiles. A tile has the rows whose two nodes lie in the same two blocks of
// consecutive nodes (or in one block). Edges of one row follow each other; tiles of one round share
// no block.
struct PairOrder {
    std::vector<std::int32_t> order;      // [num_edges], position in the given list
    std::vector<std::int32_t> sender;     // [num_edges]
    std::vector<std::int32_t> receiver;   // [num_edges]
    std::vector<std::int64_t> tiles;      // [num_tiles][2], first and last + 1 edge
    std::vector<std::int64_t> round_ptr;  // [num_rounds + 1], in tiles
};

// Senders and receivers must number the same nodes.
template <typename T>
Pairing match_pairs(const EdgeList& edges, const EdgeValues<T>& values);

// Whether the two edges of every row still have opposite directions and equal features.
template <typename T>
bool still_pairs(const Pairing& pairing, const EdgeValues<T>& values);

PairOrder order_by_pair(const EdgeList& edges, const Pairing& pairing, std::int64_t block_size);

}  // namespace mdcg
