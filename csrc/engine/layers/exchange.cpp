// Rows of ghosts: filled from their owners, and their gradients added to those of the owners.
#include "engine/communicator.hpp"
#include "engine/layers/node_layer.hpp"

namespace mdcg {

namespace {

template <typename T>
class Exchange : public Layer<T> {
public:
    explicit Exchange(const LayerSpec& spec) : x_(spec.operand("x")) {}
    Walk forward_walk() const override { return Walk::all; }
    Walk backward_walk() const override { return Walk::all; }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {}; }

    void forward(Worker<T>& worker, Range) const override {
        if (worker.communicator != nullptr)
            worker.communicator->forward(worker.value(x_), x_.rows.width, sizeof(T));
    }
    void backward(Worker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.communicator->reverse(worker.gradient(x_), x_.rows.width, sizeof(T));
    }

private:
    Operand x_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Exchange<T>>(spec);
}
const RegisterLayer registered{"exchange", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
