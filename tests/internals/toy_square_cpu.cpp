#include "engine/cpu_op.hpp"
#include "toy_square.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuToySquare : public CpuOp<T> {
public:
    explicit CpuToySquare(const ToySquareSpec& spec)
        : x_(spec.x), out_(spec.out), factor_(static_cast<T>(spec.factor)) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (int i = 0; i < x_.rows.width; ++i) {
                const T x = worker.value(x_, n)[i];
                worker.value(out_, n)[i] = factor_ * x * x;
            }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const dx = worker.started_gradient(x_, n);
            for (int i = 0; i < x_.rows.width; ++i)
                dx[i] += 2 * factor_ * worker.value(x_, n)[i] * worker.gradient(out_, n)[i];
        }
    }

private:
    const Operand &x_, &out_;
    T factor_;
};

const RegisterOp<ToySquareSpec, CpuToySquare> toy_square_cpu{"toy_square"};

}  // namespace

}  // namespace mdcg
