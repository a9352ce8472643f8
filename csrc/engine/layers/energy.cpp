// E_i += scale * x[channel] + shift, in double.
#include "engine/layers/node_fields.hpp"

namespace mdcg {

namespace {

template <typename T>
class Energy : public Layer<T> {
public:
    explicit Energy(const LayerSpec& spec) : x_(spec.operand("x")), fields_(spec, x_) {}
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {}; }

    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const auto type = static_cast<std::size_t>(worker.types[n]);
            const T value = worker.value(x_)[n * x_.rows.width + fields_.channel];
            worker.energies[n] +=
                fields_.scale[type] * static_cast<double>(value) + fields_.shift[type];
        }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* d = worker.gradient(x_) + n * x_.rows.width;
            if (!x_.accumulate) std::fill(d, d + x_.rows.width, T(0));
            d[fields_.channel] +=
                static_cast<T>(fields_.scale[static_cast<std::size_t>(worker.types[n])]);
        }
    }

private:
    Operand x_;
    EnergyFields fields_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Energy<T>>(spec);
}
const RegisterLayer registered{"energy", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
