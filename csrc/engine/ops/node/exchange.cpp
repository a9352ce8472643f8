// Exchange: fills rows of ghosts from their owners, and adds gradients of ghosts to their owners.
// Without a communicator, ghosts have rows of zeros, and their gradients are dropped.
#include <algorithm>

#include "core/integers.hpp"
#include "engine/communicator.hpp"
#include "engine/cpu_op.hpp"
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/ghosts.hpp"
#include "engine/graph.hpp"

namespace mdcg {

namespace {

struct ExchangeSpec : OpSpec {
    const Operand& x = input("x");

    explicit ExchangeSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::exchange;
    }
};

template <typename T>
class CpuExchange : public CpuOp<T> {
public:
    explicit CpuExchange(const ExchangeSpec& spec) : x_(spec.x) {}

    void forward(Worker<T>& worker, Range) const override {
        const std::int64_t local = worker.graph->num_local, nodes = worker.graph->num_nodes;
        if (worker.communicator != nullptr)
            worker.communicator->forward(worker.value(x_), x_.rows.width, sizeof(T));
        else
            std::fill(worker.value(x_, local), worker.value(x_, nodes), T(0));
    }
    void backward(Worker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.communicator->reverse(worker.gradient(x_), x_.rows.width, sizeof(T));
    }

private:
    const Operand& x_;
};

template <typename T>
class CudaExchange : public CudaOp<T> {
public:
    explicit CudaExchange(const ExchangeSpec& spec) : x_(spec.x) {}

    void forward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr)
            worker.ghosts->forward(*worker.communicator, worker.value(x_), x_.rows.width,
                                   *worker.edges, *worker.stream, worker.half);
        else
            clear_on_device(
                worker.value(x_, worker.edges->num_local),
                size((worker.edges->num_nodes - worker.edges->num_local) * x_.rows.width) *
                    sizeof(T),
                *worker.stream);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.ghosts->reverse(*worker.communicator, worker.gradient(x_), x_.rows.width,
                                   *worker.edges, *worker.stream, worker.half);
    }

private:
    const Operand& x_;
};

const RegisterOp<ExchangeSpec, CpuExchange, CudaExchange> registered{"exchange"};

}  // namespace

}  // namespace mdcg
