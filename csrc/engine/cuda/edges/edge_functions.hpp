// Harmonics and the radial network of the edges of a chunk, and back to their vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/edges/radial.hpp"

namespace mdcg {

template <typename T>
class CudaEdgeFunctions {
public:
    // `hidden_stride`: items of a row of hidden, as csrc/engine/edges/radial.hpp lays them out.
    // `flip` as in CudaGeometry.
    CudaEdgeFunctions(const RadialSpec& spec, int l_max, const std::string& normalization,
                      bool flip);
    void prepare(CudaKernels& kernels, const DeviceStream& stream);

    std::int64_t harmonics_width() const;              // (l_max + 1)^2
    std::int64_t hidden_stride() const;                // units, padded; unused columns zero
    std::size_t work_bytes(std::int64_t edges) const;  // of a chunk, for backward

    // Rows of nodes that are added to the first layer (see RadialRows); null: none.
    struct Ends {
        const T *sender = nullptr, *receiver = nullptr;
        T *d_sender = nullptr, *d_receiver = nullptr;
        std::int64_t sender_width = 0, receiver_width = 0;
    };

    // harmonics [chunk edges][width], hidden [chunk edges][hidden_stride]; dead edges are zeros.
    // `work` null: no backward follows.
    void forward(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends, char* work,
                 T* harmonics, T* hidden) const;
    // After forward with the same work. Adds to worker.edge_gradient and to the ends' gradients;
    // d_hidden may be overwritten.
    void backward(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends, char* work,
                  const T* d_harmonics, T* d_hidden) const;

private:
    struct Impl;
    std::shared_ptr<Impl> impl_;
};

}  // namespace mdcg
