// See CudaGhosts for the way of the rows.
#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/ghosts.hpp"
#include "engine/ops/node/exchange.hpp"

namespace mdcg {

namespace {

template <typename T>
class CudaExchange : public CudaOp<T> {
public:
    explicit CudaExchange(const ExchangeSpec& spec) : x_(spec.x) {}

    void forward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr)
            worker.ghosts->forward(*worker.communicator, worker.value(x_), x_.rows.width,
                                   *worker.edges, *worker.stream);
    }
    void backward(CudaWorker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.ghosts->reverse(*worker.communicator, worker.gradient(x_), x_.rows.width,
                                   *worker.edges, *worker.stream);
    }

private:
    const Operand& x_;
};

const RegisterOp<ExchangeSpec, CudaExchange> registered{"exchange"};

}  // namespace

}  // namespace mdcg
