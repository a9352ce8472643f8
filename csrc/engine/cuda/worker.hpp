// What layers see of one evaluation on a device, and what they are made from.
#pragma once

#include "core/cuda_memory.hpp"
#include "engine/cuda/graph.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/layer.hpp"
#include "engine/registry.hpp"

namespace mdcg {

template <typename T>
class CudaGhosts;  // engine/cuda/ghosts.hpp

// `values`, `gradients`, `types`, `energies` and `edge_gradient` are of the device; the latter has
// a row for every slot of `edges`. `graph` is null.
template <typename T>
class CudaWorker : public Worker<T> {
public:
    const CudaStream* stream = nullptr;
    const CudaGraph* edges = nullptr;
    CudaGhosts<T>* ghosts = nullptr;
    int* failures = nullptr;  // [1] set by kernels that meet what cannot be
    // [1] set by kernels that meet an edge too short for a table: the step must be done again
    int* short_edges = nullptr;
    bool exact = false;  // without tables

    // Device memory until the next call, aligned to 256 bytes. Grows before a capture only.
    char* device_scratch(std::size_t bytes);

    CudaMemory* scratch_memory = nullptr;
};

// Layers on a device: forward and backward enqueue on worker.stream, for the given range of nodes,
// which is all local nodes or all nodes. They are called with a CudaWorker.
template <typename T>
class CudaLayer : public Layer<T> {
public:
    // Once, before the first evaluation: takes kernels, uploads weights.
    virtual void prepare_device(CudaKernels& kernels, const CudaStream& stream) = 0;
    // Once, before the first evaluation with `exact`: what only those need.
    virtual void prepare_exact(CudaKernels&, const CudaStream&) {}
    // All that any evaluation could need: for lists of texts.
    virtual void prepare_all(CudaKernels& kernels, const CudaStream& stream) {
        prepare_device(kernels, stream);
        prepare_exact(kernels, stream);
    }
    // For every new list of edges, before its first evaluation.
    virtual void take_list(const CudaGraph&, const CudaStream&) {}
    // Scratch that forward or backward will ask for, of a graph of that size.
    virtual std::size_t scratch_bytes(const CudaGraph&) const { return 0; }
    virtual void enqueue_forward(CudaWorker<T>& worker, Range nodes) const = 0;
    virtual void enqueue_backward(CudaWorker<T>& worker, Range nodes) const = 0;

    void forward(Worker<T>& worker, Range nodes) const final {
        enqueue_forward(static_cast<CudaWorker<T>&>(worker), nodes);
    }
    void backward(Worker<T>& worker, Range nodes) const final {
        enqueue_backward(static_cast<CudaWorker<T>&>(worker), nodes);
    }
};

// As RegisterLayer and find_layer, of layers on devices.
struct RegisterCudaLayer {
    RegisterCudaLayer(const char* type, LayerFactory<float> f32, LayerFactory<double> f64);
};
template <typename T>
LayerFactory<T> find_cuda_layer(const std::string& type);

}  // namespace mdcg
