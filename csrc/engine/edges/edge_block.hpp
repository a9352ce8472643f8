// A block of edges of the graph: their atoms, lengths and directions, and the gradients of these.
#pragma once

#include <cstdint>

#include "engine/edges/layout.hpp"
#include "engine/edges/radial.hpp"
#include "engine/graph.hpp"

namespace mdcg {

template <typename T>
struct EdgeBlock {
    std::int64_t count = 0, capacity = 0;
    std::int32_t* edge;  // [capacity] number in the graph
    std::int32_t *sender, *receiver, *sender_type, *receiver_type;  // [capacity]
    double* length;    // [capacity] Å; longer than any cutoff beyond the last edge
    T* unit;           // [3][capacity] argument of the harmonics; zero beyond the last edge
    double* d_length;  // [capacity] gradient of `length`

    void take(Layout& layout, std::int64_t size) {
        capacity = size;
        layout.take(edge, size);
        layout.take(sender, size);
        layout.take(receiver, size);
        layout.take(sender_type, size);
        layout.take(receiver_type, size);
        layout.take(length, size);
        layout.take(unit, 3 * size);
        layout.take(d_length, size);
    }

    // Takes the edges list[0 .. n), or first .. first + n if list is null. `flip`: directions point
    // from the receiver to the sender. Clears d_length.
    void gather(const Graph& graph, const std::int32_t* types, const std::int32_t* list,
                std::int64_t first, std::int64_t n, bool flip);

    // Adds the gradients d_length and, if not null, d_unit [3][capacity] of these edges to
    // edge_gradient [num_edges][3].
    void scatter(const T* d_unit, bool flip, T* edge_gradient) const;

    RadialEdges radial() const { return {count, capacity, length, sender_type, receiver_type}; }
};

}  // namespace mdcg
