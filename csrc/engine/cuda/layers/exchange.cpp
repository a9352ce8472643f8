// Rows of ghosts: filled from their owners, and their gradients added to those of the owners. See
// CudaGhosts for their way.
#include "engine/cuda/ghosts.hpp"
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

    void prepare_device(CudaKernels&, const CudaStream&) override {}
    void enqueue_forward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr)
            worker.ghosts->forward(*worker.communicator, worker.value(x_), x_.rows.width,
                                   *worker.edges, *worker.stream);
    }
    void enqueue_backward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.ghosts->reverse(*worker.communicator, worker.gradient(x_), x_.rows.width,
                                   *worker.edges, *worker.stream);
    }

private:
    Operand x_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<CudaExchange<T>>(spec);
}
const RegisterCudaLayer registered{"exchange", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
