#include "engine/ops/node/energy.hpp"

#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

template <typename T, typename Place>
class EnergyOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit EnergyOp(const EnergySpec& spec)
        : spec_(spec), scale_(*this, spec.scale), shift_(*this, spec.shift) {}

    void forward(Step& step, Range nodes) const override {
        Energy<T> arguments = common(step, nodes);
        arguments.x = step.value(spec_.x, nodes.begin);
        arguments.energies = step.energies + nodes.begin;
        this->run(RowFunction::energy_forward, step, arguments);
    }
    void backward(Step& step, Range nodes) const override {
        Energy<T> arguments = common(step, nodes);
        arguments.dx = step.gradient(spec_.x, nodes.begin);
        if (step.energy_weights != nullptr) arguments.weights = step.energy_weights + nodes.begin;
        this->run(RowFunction::energy_backward, step, arguments);
    }

private:
    Energy<T> common(const Step& step, Range nodes) const {
        Energy<T> arguments{};
        arguments.scale = scale_.data();
        arguments.shift = shift_.data();
        arguments.types = step.types + nodes.begin;
        arguments.count = nodes.end - nodes.begin;
        arguments.width = spec_.x.rows.width;
        arguments.channel = static_cast<int>(spec_.channel);
        arguments.add = spec_.x.accumulate;
        return arguments;
    }

    const EnergySpec& spec_;
    typename RowOp<T, Place>::template Constants<double> scale_, shift_;
};

const RegisterRowOp<EnergySpec, EnergyOp> registered{"energy"};

}  // namespace

}  // namespace mdcg
