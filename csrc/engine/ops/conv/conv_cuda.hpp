// The three ways to compute a convolution on a device, and what two of them share.
#pragma once

#include <memory>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/pass_kernel.hpp"
#include "engine/ops/conv/conv.hpp"

namespace mdcg {

// Generated kernels that evaluate the weights of their edges from a table of lengths. The radial
// network must have a table.
template <typename T>
std::unique_ptr<CudaOp<T>> make_table_conv(const ConvSpec& spec);

// Sums by type of the sender (type_sums.hpp), for lists with senders of at most MAX_SUMMED_TYPES
// types. The radial network must have a table.
template <typename T>
std::unique_ptr<CudaOp<T>> make_type_sums(const ConvSpec& spec);

// For radial networks that no table can serve, because they also read features of nodes or are not
// smooth: hidden units of edges, their product with the last layer, and generated kernels that read
// the weights.
template <typename T>
std::unique_ptr<CudaOp<T>> make_weights_conv(const ConvSpec& spec);

// The features that generated kernels read: rows of senders, or rows of their types if the
// convolution has a table by type.
template <typename T>
class ConvFeatures {
public:
    explicit ConvFeatures(const ConvSpec& spec) : spec_(spec) {}

    void prepare(const DeviceStream& stream) {
        if (spec_.x.present()) return;
        const AlignedArray<T> table = spec_.x_table<T>();
        table_.upload(table.data(), table.size(), stream);
    }
    void set(CudaArguments& arguments, const CudaWorker<T>& worker) const {
        const bool by_type = !spec_.x.present();
        arguments.set(CudaArgument::x, by_type ? table_.data() : worker.value(spec_.x));
        arguments.set(CudaArgument::sender,
                      by_type ? worker.edges->sender_type : worker.edges->sender);
    }

private:
    const ConvSpec& spec_;
    DeviceArray<T> table_;  // [types][width of x]
};

}  // namespace mdcg
