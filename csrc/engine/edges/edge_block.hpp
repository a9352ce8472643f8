// One block of edges of the graph: ends, lengths and directions, and the way back of gradients.
#pragma once

#include <cstdint>

#include "engine/edges/layout.hpp"
#include "engine/edges/radial.hpp"
#include "engine/graph.hpp"

namespace mdcg {

template <typename T>
struct EdgeBlock {
    std::int64_t count = 0, capacity = 0;
    std::int32_t *edge, *sender, *receiver, *sender_type, *receiver_type;  // [capacity]
    double* length;    // [capacity], Å; unused ones: longer than any cutoff
    T* unit;           // [3][capacity] direction as harmonics see it; unused ones zero
    double* d_length;  // [capacity] gradient

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

    // Edges numbered list[0 .. n), or first .. first + n where list is null. `flip`: the direction
    // is from the receiver to the sender. d_length is cleared.
    void gather(const Graph& graph, const std::int32_t* types, const std::int32_t* list,
                std::int64_t first, std::int64_t n, bool flip);

    // Adds d_length and, where it is not null, d_unit [3][capacity] to edge_gradient [edges][3].
    void scatter(const T* d_unit, bool flip, T* edge_gradient) const;

    RadialEdges radial() const { return {count, capacity, length, sender_type, receiver_type}; }
};

}  // namespace mdcg
