// Sums of rows of edges, or of pairs of edges, by their senders, chunk by chunk.
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

    // Adds rows [edges of the chunk][width], at their places, to the rows of `target` of their
    // senders, in a fixed order; those of dead edges may hold anything. `width` is a multiple of 16
    // bytes.
    void run(const DeviceStream& stream, const DeviceEdges& graph, std::size_t chunk, const T* rows,
             std::int64_t width, T* target) const;
    // The same for rows of pairs; `rows` is where row 0 of the list would be. Rows of pairs that
    // are all dead may hold anything.
    void run_pairs(const DeviceStream& stream, const DeviceEdges& graph, std::size_t chunk,
                   const T* rows, std::int64_t width, T* target) const;
    // Sums rows [receivers][parts][width] of each receiver, and writes them to those of `target` or
    // adds them.
    void run_own(const DeviceStream& stream, const T* rows, std::int64_t receivers,
                 std::int64_t parts, std::int64_t width, T* target, bool add) const;

private:
    void launch(const DeviceStream& stream, SenderSumArguments<T> sums) const;
    CudaFunction sum_, own_;
};

}  // namespace mdcg
