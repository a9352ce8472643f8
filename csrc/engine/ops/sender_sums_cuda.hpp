// Sums of rows by their senders: rows of pairs span by span, rows of edges chunk by chunk.
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

    // Adds each row to the row of `target` of its sender, in a fixed order. With a chunk of the
    // span, rows are those of its edges, in their order. Without, they are those of pairs of the
    // span, and `rows` is the address that row 0 of the list would have. Rows of dead edges, and of
    // pairs that are all dead, may hold anything. `width` is a multiple of 16 bytes.
    void run(const DeviceStream& stream, const DeviceEdges& graph, std::size_t span,
             const CudaChunk* chunk, const T* rows, std::int64_t width, T* target) const;
    // Sums rows [receivers][parts][width] of each receiver, and writes them to those of `target` or
    // adds them.
    void run_own(const DeviceStream& stream, const T* rows, std::int64_t receivers,
                 std::int64_t parts, std::int64_t width, T* target, bool add) const;

private:
    CudaFunction sum_, own_;
};

}  // namespace mdcg
