// The fused convolution on a device: generated kernels that make the weights of their edges from a
// table of lengths. The backward pass takes each edge together with its reverse (DeviceEdges), and
// keeps rows for senders and receivers of a group.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/ops/conv/conv.hpp"
#include "engine/ops/conv/sender_sums_cuda.hpp"

namespace mdcg {

template <typename T>
class CudaTableConv {
public:
    // The radial network has a table.
    explicit CudaTableConv(const ConvSpec& spec);
    void prepare(CudaKernels& kernels);
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream);

    std::size_t scratch_bytes(const DeviceEdges& graph) const;

    // After prepare: the number of streams on which backward adds to gradients of edges.
    int gradient_streams() const { return backward_.streams(); }

    // `x`: rows of senders, or of their types where `by_type`. Every row of `out` is written.
    void forward(CudaWorker<T>& worker, const T* x, bool by_type, T* out) const;
    // `dx` of local nodes is added to, or written where `add` is false; that of others is added to.
    // Null: not wanted.
    void backward(CudaWorker<T>& worker, const T* x, bool by_type, const T* gradient, T* dx,
                  bool add) const;

private:
    std::int64_t row_bytes() const { return x_width_ * static_cast<std::int64_t>(sizeof(T)); }
    static CudaPassKernel::Widths widths(const ConvSpec& spec);
    using Table = PolynomialTable<T>;
    CudaArguments arguments(const CudaWorker<T>& worker, const Table& table, const T* x,
                            bool by_type) const;
    CudaArguments pair_arguments(const CudaWorker<T>& worker, const T* x, bool by_type,
                                 const T* gradient, const ReceiverRange& range) const;

    const ConvSpec& spec_;
    std::int64_t x_width_, out_width_;
    bool flip_;
    int num_types_;
    CudaPassKernel forward_, backward_;
    // The forward table needs no derivatives. It has fewer, longer intervals and polynomials of a
    // higher degree: edges come by length, so that the next one often lies in the same interval.
    std::unique_ptr<Table> forward_table_, backward_table_;
    CudaSenderSums<T> sums_;
    std::vector<std::unique_ptr<DeviceEvent>> summed_;  // of each buffer of rows
};

}  // namespace mdcg
