// A convolution that no table can serve, on a device, because its radial network also reads
// features of nodes or is not smooth. Chunk by chunk: hidden units of edges, their product with the
// last layer, and generated kernels that read the weights. The backward pass makes them again.
#pragma once

#include <cstdint>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/edges/edge_functions.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/ops/conv/conv.hpp"
#include "engine/ops/conv/sender_sums_cuda.hpp"

namespace mdcg {

template <typename T>
class CudaWeightsConv {
public:
    // `spec` must stay.
    explicit CudaWeightsConv(const ConvSpec& spec);
    void prepare(CudaKernels& kernels, const DeviceStream& stream);

    std::size_t scratch_bytes(const DeviceEdges& graph) const {
        return lay_out(nullptr, graph).bytes;
    }
    // `x`: rows of senders, or of their types where `by_type`.
    void forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const;
    void backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient) const;

private:
    using Ends = typename CudaEdgeFunctions<T>::Ends;
    // The buffers of one chunk. Gradients of weights and hidden units overwrite their values: each
    // thread reads a value before it writes the gradient, and no other thread reads that value.
    struct Scratch {
        T *harmonics, *hidden, *weights, *d_harmonics, *dx;
        char* work;
        std::size_t bytes;
    };
    Scratch lay_out(char* start, const DeviceEdges& graph) const;
    static CudaPassKernel::Widths widths(const ConvSpec& spec);
    Ends ends(const CudaWorker<T>& worker, bool gradients) const;
    // Harmonics and weights of a chunk, and arguments that both passes share.
    CudaArguments fill(CudaWorker<T>& worker, const CudaChunk& chunk, const Ends& ends,
                       const Scratch& scratch, bool backward, const T* x, bool by_type) const;

    const ConvSpec& spec_;
    CudaEdgeFunctions<T> edges_;
    CudaPassKernel forward_, backward_;
    CudaGemm<T> gemm_;
    CudaMatrix<T> last_, last_t_;  // [units][weights], [weights][units]
    CudaSenderSums<T> sums_;
};

}  // namespace mdcg
