// Sums of rows by their senders: rows of pairs span by span, rows of edges chunk by chunk.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/ops/cuda.hpp"
#include "kernels/sender_sums.hpp"

namespace mdcg {

template <typename T>
class CudaSenderSums {
public:
    CudaSenderSums() = default;
    explicit CudaSenderSums(CudaKernels& kernels);

    // Both add each row to the row of `target` of its sender, in a fixed order. Rows of dead edges,
    // and of pairs that are all dead, may hold anything. `width` is a multiple of 16 bytes.

    // Rows of pairs of a span: `rows` is the address that row 0 of the list would have.
    void run_pairs(const DeviceStream& stream, const DeviceEdges& graph, std::size_t span,
                   const T* rows, std::int64_t width, T* target) const;
    // Rows of the edges of a chunk of a span, in their order.
    void run_edges(const DeviceStream& stream, const DeviceEdges& graph, std::size_t span,
                   const CudaChunk& chunk, const T* rows, std::int64_t width, T* target) const;
    // Sums rows [receivers][parts][width] of each receiver, and writes them to those of `target` or
    // adds them.
    void run_own(const DeviceStream& stream, const T* rows, std::int64_t receivers,
                 std::int64_t parts, std::int64_t width, T* target, bool add) const;

private:
    void run(const DeviceStream& stream, const CudaSpan& span,
             SenderSumArguments<T> arguments) const;

    CudaFunction sum_, own_;
};

}  // namespace mdcg
