#include "engine/cpu_op.hpp"
#include "toy_square.hpp"

namespace mdcg {

namespace {

template <typename T>
class CpuToySquare : public CpuOp<T> {
public:
    explicit CpuToySquare(const ToySquareSpec& spec) : spec_(spec), x_(spec.x), out_(spec.out) {}

    void forward(Worker<T>& worker, Range nodes) const override {
        const T factor = static_cast<T>(spec_.factor_of(worker));
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n)
            for (int i = 0; i < x_.rows.width; ++i) {
                const T x = worker.value(x_, n)[i];
                worker.value(out_, n)[i] = factor * x * x;
            }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        const T factor = static_cast<T>(spec_.factor_of(worker));
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* const dx = worker.started_gradient(x_, n);
            for (int i = 0; i < x_.rows.width; ++i)
                dx[i] += 2 * factor * worker.value(x_, n)[i] * worker.gradient(out_, n)[i];
        }
    }

private:
    const ToySquareSpec& spec_;
    const Operand &x_, &out_;
};

const RegisterOp<ToySquareSpec, CpuToySquare> toy_square_cpu{"toy_square"};

}  // namespace

}  // namespace mdcg
