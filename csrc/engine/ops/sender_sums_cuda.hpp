// Sums of rows of edges, or of pairs of edges, by their senders, span by span.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/cuda.hpp"

namespace mdcg {

template <typename T>
class CudaSenderSums {
public:
    CudaSenderSums() = default;
    explicit CudaSenderSums(CudaKernels& kernels);

    // What the rows belong to. Rows of edges begin with those of the span; for rows of pairs,
    // `rows` is the address that row 0 of the list would have.
    enum class Rows { edges, pairs };
    // Adds the rows of a span to the rows of `target` of their senders, in a fixed order. Rows of
    // dead edges, and of pairs that are all dead, may hold anything. `width` is a multiple of 16
    // bytes.
    void run(const DeviceStream& stream, const DeviceEdges& graph, std::size_t span, Rows kind,
             const T* rows, std::int64_t width, T* target) const;
    // Sums rows [receivers][parts][width] of each receiver, and writes them to those of `target` or
    // adds them.
    void run_own(const DeviceStream& stream, const T* rows, std::int64_t receivers,
                 std::int64_t parts, std::int64_t width, T* target, bool add) const;

private:
    CudaFunction sum_, own_;
};

}  // namespace mdcg
