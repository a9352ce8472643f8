#include "engine/communicator.hpp"
#include "engine/cpu_op.hpp"
#include "engine/ops/node/exchange.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuExchange : public CpuOp<T> {
public:
    explicit CpuExchange(const ExchangeSpec& spec) : x_(spec.x) {}

    void forward(Worker<T>& worker, Range) const override {
        if (worker.communicator != nullptr)
            worker.communicator->forward(worker.value(x_), x_.rows.width, sizeof(T));
    }
    void backward(Worker<T>& worker, Range) const override {
        if (worker.communicator != nullptr && x_.needs_gradient)
            worker.communicator->reverse(worker.gradient(x_), x_.rows.width, sizeof(T));
    }

private:
    const Operand& x_;
};

const RegisterOp<ExchangeSpec, CpuExchange> registered{"exchange"};

}  // namespace

}  // namespace mdcg
