#include "engine/ops/node/reference_weights.hpp"

#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

template <typename T, typename Place>
class ReferenceWeightsOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit ReferenceWeightsOp(const ReferenceWeightsSpec& spec)
        : spec_(spec), references_(*this, spec.references) {}

    void forward(Step& step, Range nodes) const override {
        ReferenceWeights<T> arguments = common(step, nodes);
        arguments.out = step.value(spec_.out, nodes.begin);
        this->run(RowFunction::reference_weights_forward, step, arguments);
    }
    void backward(Step& step, Range nodes) const override {
        ReferenceWeights<T> arguments = common(step, nodes);
        arguments.g = step.gradient(spec_.out, nodes.begin);
        arguments.dx = step.gradient(spec_.x, nodes.begin);
        this->run(RowFunction::reference_weights_backward, step, arguments);
    }

private:
    ReferenceWeights<T> common(const Step& step, Range nodes) const {
        ReferenceWeights<T> arguments{};
        arguments.x = step.value(spec_.x, nodes.begin);
        arguments.references = references_.data();
        arguments.types = step.types + nodes.begin;
        arguments.steepness = spec_.steepness;
        arguments.count = nodes.end - nodes.begin;
        arguments.x_width = spec_.x.rows.width;
        arguments.out_width = spec_.out.rows.width;
        arguments.add = spec_.x.accumulate;
        return arguments;
    }

    const ReferenceWeightsSpec& spec_;
    typename RowOp<T, Place>::template Constants<double> references_;
};

const RegisterRowOp<ReferenceWeightsSpec, ReferenceWeightsOp> registered{"reference_weights"};

}  // namespace

}  // namespace mdcg
