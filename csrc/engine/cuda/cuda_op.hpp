// What implementations of operations see of one evaluation on a device, and what they are there.
#pragma once

#include <memory>
#include <stdexcept>

#include "core/device.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/cuda/kernel_streams.hpp"
#include "engine/cuda/kernels.hpp"

namespace mdcg {

template <typename T>
class CudaGhosts;    // engine/cuda/ghosts.hpp
class DevicePoints;  // engine/cuda/device_points.hpp

// All rows are on the device; `edge_gradient` has one for every edge of `edges` and each of its
// gradient_streams, whose sum is the gradient.
template <typename T>
class CudaWorker : public StepRows<T> {
public:
    // Stream 0; for an operation on nodes perhaps another stream.
    const DeviceStream* stream = nullptr;
    KernelStreams* streams = nullptr;
    const DeviceEdges* edges = nullptr;
    CudaGhosts<T>* ghosts = nullptr;
    const DevicePoints* points = nullptr;  // of programs that read them
    int* failures = nullptr;               // [1] set by kernels that meet what cannot be

    // Device memory, aligned to 256 bytes, until this forward or backward has ended. Then other
    // rows have the same place. An operation asks for at most what its scratch_bytes returns.
    char* device_scratch(std::size_t bytes) const {
        if (bytes > free_bytes) throw std::logic_error("an operation asks for too much scratch");
        return free_memory;
    }

    char* free_memory = nullptr;  // what is free of the arena while the operation runs
    std::size_t free_bytes = 0;
};

// Forward and backward enqueue on worker.stream, for all local nodes or all nodes. Operations on
// nodes may run at the same time as others that use other rows (see step.hpp), so they use neither
// streams nor device_scratch, and keep nothing between forward and backward.
template <typename T>
class CudaOp {
public:
    using Base = CudaOp;
    virtual ~CudaOp() = default;

    // Once, before the first evaluation: takes kernels, uploads weights.
    virtual void prepare(CudaKernels&, const DeviceStream&) {}
    // All that any evaluation could need: for lists of texts.
    virtual void prepare_all(CudaKernels& kernels, const DeviceStream& stream) {
        prepare(kernels, stream);
    }
    // For every new list of edges, before its first evaluation.
    virtual void on_new_list(const DeviceEdges&, const DeviceStream&) {}
    // True if, for that list, the operation also computes the result of OpSpec::only_reader, whose
    // passes are then skipped.
    virtual bool fuses_next_op(const CudaWorker<T>&) const { return false; }
    // For that list: how many streams have kernels that add to gradients of edges at the same time.
    virtual int gradient_streams() const { return 1; }
    // What kernels want of the pairs of every list.
    virtual EdgeOrder edge_order() const { return EdgeOrder::any; }
    // Whether DeviceEdges::by_length should be by type of the sender first.
    virtual bool by_sender_type() const { return false; }
    // Bytes of a row that it keeps for a sender of pairs; 0: it keeps none.
    virtual std::int64_t pair_row_bytes() const { return 0; }
    // Scratch that forward or backward will ask for, for that list.
    virtual std::size_t scratch_bytes(const DeviceEdges&) const { return 0; }
    virtual void forward(CudaWorker<T>& worker, Range nodes) const = 0;
    virtual void backward(CudaWorker<T>& worker, Range nodes) const = 0;
};

}  // namespace mdcg
