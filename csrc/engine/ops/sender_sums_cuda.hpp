// Sums of rows of edges by their senders, chunk by chunk.
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

    // Adds rows [edges of the chunk][width], at their places, to the rows of `target` of their
    // senders, in a fixed order; those of dead edges may hold anything. `width` is a multiple of 16
    // bytes.
    void run(const DeviceStream& stream, const DeviceEdges& graph, std::size_t chunk, const T* rows,
             std::int64_t width, T* target) const;

private:
    CudaFunction sum_;
};

}  // namespace mdcg
