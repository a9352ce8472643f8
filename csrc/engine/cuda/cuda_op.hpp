// The arguments of operations in one evaluation on a device, and the interface of operations there.
#pragma once

#include <memory>
#include <stdexcept>

#include "core/device.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/cuda/halves.hpp"
#include "engine/cuda/kernel_streams.hpp"
#include "engine/cuda/kernels.hpp"

namespace mdcg {

template <typename T>
class CudaGhosts;    // engine/cuda/ghosts.hpp
class DevicePoints;  // engine/cuda/device_points.hpp
struct BatchPart;    // engine/cuda/batch.hpp

// All rows are on the device. `edge_gradient` has a row for each edge and each of
// edges->gradient_streams; the sum over streams is the gradient.
template <typename T>
class CudaWorker : public StepRows<T> {
public:
    // Stream 0; for an operation on nodes possibly another stream.
    const DeviceStream* stream = nullptr;
    KernelStreams* streams = nullptr;
    const DeviceEdges* edges = nullptr;
    CudaGhosts<T>* ghosts = nullptr;
    const DevicePoints* points = nullptr;  // null if the program reads no points
    Half half = Half::whole;               // for exchanges
    // [0] see CudaGeometry::run; [1] not 0 if charges are too large
    int* failures = nullptr;
    // For operations on points or the system, in steps with a gradient.
    double* forces = nullptr;  // [num_local][3] added to
    // [num_local][6] xx yy zz xy xz yz, added to: of atoms, or of the system in any row
    double* virials = nullptr;
    const double* cell = nullptr;    // of the host, [3][3] Å, rows are vectors; null: open
    const bool* periodic = nullptr;  // [3], if there is a cell
    // The systems of the nodes, with cells of their own, in place of `cell`; null: there is one.
    const BatchPart* batch = nullptr;

    // Device memory, aligned to 256 bytes, which the operation may use until this forward or
    // backward has ended. An operation asks for at most what its scratch_bytes returns.
    char* device_scratch(std::size_t bytes) const {
        if (bytes > free_bytes) throw std::logic_error("an operation asks for too much scratch");
        return free_memory;
    }

    char* free_memory = nullptr;  // the part of the arena that is free while the operation runs
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

    // Called once, before the first evaluation: takes kernels, uploads weights.
    virtual void prepare(CudaKernels&, const DeviceStream&) {}
    // Takes all kernels that any evaluation could need, so that their texts can be listed.
    virtual void prepare_all(CudaKernels& kernels, const DeviceStream& stream) {
        prepare(kernels, stream);
    }
    // Called after `prepare` if tensors of the specification have changed with inputs of the
    // system.
    virtual void on_new_inputs(const DeviceStream&) {}
    // Called for every new list of edges, before its first evaluation.
    virtual void on_new_list(const DeviceEdges&, const DeviceStream&) {}
    // Whether, for this list, the operation also computes the result of OpSpec::only_reader, whose
    // passes are then skipped.
    virtual bool fuses_next_op(const CudaWorker<T>&) const { return false; }
    // For this list: how many streams add to gradients of edges at the same time.
    virtual int gradient_streams() const { return 1; }
    // What the kernels need from every list.
    virtual EdgeOrder edge_order() const { return EdgeOrder::any; }
    // Whether DeviceEdges::by_length must be sorted by type of the sender first.
    virtual bool by_sender_type() const { return false; }
    // Bytes of the row that it writes for each sender of pairs; 0: it writes none.
    virtual std::int64_t pair_row_bytes() const { return 0; }
    // Whether a pass may be called twice: for receivers without ghosts (from
    // DeviceEdges::first_inner on) and for the others, in any order. Gradients of ghosts are
    // complete after the call for the others.
    virtual bool takes_halves() const { return false; }
    // Called before each evaluation, without a row of it: reserves memory that is the operation's
    // own, after worker.edges->before_growth.
    virtual void reserve(const CudaWorker<T>&) {}
    // Device memory of the operation's own that depends on the system.
    virtual std::size_t bytes() const { return 0; }
    // Scratch memory that forward or backward will ask for, for this list.
    virtual std::size_t scratch_bytes(const DeviceEdges&) const { return 0; }
    virtual void forward(CudaWorker<T>& worker, Range nodes) const = 0;
    virtual void backward(CudaWorker<T>& worker, Range nodes) const = 0;
};

}  // namespace mdcg
