// Rows of ghosts: filled from their owners, and their gradients added to those of the owners. Rows
// pass through memory of the host, which the communicator sees.
#include "engine/communicator.hpp"
#include "engine/cuda/layers/node_layer.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaExchange : public CudaLayer<T> {
public:
    explicit CudaExchange(const LayerSpec& spec) : x_(spec.operand("x")) {}
    Walk forward_walk() const override { return Walk::all; }
    Walk backward_walk() const override { return Walk::all; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {}; }

    void prepare_device(CudaKernels& kernels, const CudaStream&) override {
        rows_ = std::make_unique<PinnedMemory>(kernels.device());
    }
    void enqueue_forward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator == nullptr) return;
        const CudaGraph& edges = *worker.edges;
        T* const device = worker.value(x_);
        T* const host = reserve(edges);
        const std::size_t local = items(edges.num_local), all = items(edges.num_nodes);
        copy_to_host(host, device, local * sizeof(T), *worker.stream);
        worker.stream->synchronize();
        worker.communicator->forward(host, x_.rows.width, sizeof(T));
        copy_to_device(device + local, host + local, (all - local) * sizeof(T), *worker.stream);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator == nullptr || !x_.needs_gradient) return;
        const CudaGraph& edges = *worker.edges;
        T* const device = worker.gradient(x_);
        T* const host = reserve(edges);
        copy_to_host(host, device, items(edges.num_nodes) * sizeof(T), *worker.stream);
        worker.stream->synchronize();
        worker.communicator->reverse(host, x_.rows.width, sizeof(T));
        // nothing reads the ghosts' any more
        copy_to_device(device, host, items(edges.num_local) * sizeof(T), *worker.stream);
    }

private:
    std::size_t items(std::int64_t nodes) const {
        return static_cast<std::size_t>(nodes * x_.rows.width);
    }
    // The layer's own: what it has enqueued may still read it when the next layer begins. The host
    // waits for the device before it is written again.
    T* reserve(const CudaGraph& edges) const {
        rows_->reserve(std::max<std::size_t>(1, items(edges.num_nodes) * sizeof(T)));
        return rows_->template as<T>();
    }

    Operand x_;
    std::unique_ptr<PinnedMemory> rows_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaExchange<T>>(spec);
}
const RegisterCudaLayer registered{"exchange", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
