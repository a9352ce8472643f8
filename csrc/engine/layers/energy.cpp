// E_i += scale * x[channel] + shift, in double.
#include "engine/layers/node_layer.hpp"

namespace mdcg {

namespace {

template <typename T>
class Energy : public Layer<T> {
public:
    explicit Energy(const LayerSpec& spec) : x_(spec.operand("x")) {
        const Block& block = x_.rows.blocks[0];
        if (block.l != 0)
            spec.fields.fail("x starts with " + block_text(block) + ", expected scalars");
        channel_ = spec.fields.integer("channel", 0, block.mul - 1);
        scale_ = typed(spec, "scale");
        shift_ = typed(spec, "shift");
    }
    std::vector<int> kept() const override { return {}; }
    std::vector<Operand*> inputs() override { return {&x_}; }
    std::vector<Operand*> outputs() override { return {}; }

    void forward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            const auto type = static_cast<std::size_t>(worker.types[n]);
            const T value = worker.value(x_)[n * x_.rows.width + channel_];
            worker.energies[n] += scale_[type] * static_cast<double>(value) + shift_[type];
        }
    }
    void backward(Worker<T>& worker, Range nodes) const override {
        for (std::int64_t n = nodes.begin; n < nodes.end; ++n) {
            T* d = worker.gradient(x_) + n * x_.rows.width;
            if (!x_.accumulate) std::fill(d, d + x_.rows.width, T(0));
            d[channel_] += static_cast<T>(scale_[static_cast<std::size_t>(worker.types[n])]);
        }
    }

private:
    // One number for every type.
    static std::vector<double> typed(const LayerSpec& spec, const char* key) {
        std::vector<double> values = spec.fields.values<double>(key, {-1});
        const auto types = static_cast<std::size_t>(spec.info.num_types());
        if (values.size() == 1) values.resize(types, values[0]);
        if (values.size() != types)
            spec.fields.fail(key, std::to_string(values.size()) + " numbers",
                             "1 or " + std::to_string(types));
        return values;
    }

    Operand x_;
    std::int64_t channel_;
    std::vector<double> scale_, shift_;
};

template <typename T>
std::unique_ptr<Layer<T>> make(const LayerSpec& spec) {
    return std::make_unique<Energy<T>>(spec);
}
const RegisterLayer registered{"energy", &make<float>, &make<double>};

}  // namespace

}  // namespace mdcg
