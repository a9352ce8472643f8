#include "engine/ops/node/pointwise.hpp"

#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

template <typename T, typename Place>
class ScaleOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit ScaleOp(const ScaleSpec& spec)
        : x_(spec.x),
          out_(spec.out),
          by_type_(spec.factor.count > 1),
          factor_(*this, spec.fields.read<T>(spec.factor)) {}
    void forward(Step& step, Range nodes) const override {
        run(step, nodes, step.value(x_, nodes.begin), step.value(out_, nodes.begin), false);
    }
    void backward(Step& step, Range nodes) const override {
        run(step, nodes, step.gradient(out_, nodes.begin), step.gradient(x_, nodes.begin),
            x_.accumulate);
    }

private:
    void run(Step& step, Range nodes, const T* x, T* out, bool add) const {
        RowOp<T, Place>::run(RowFunction::scale_forward, step,
                             Scale<T>{x, out, factor_.data(), step.types + nodes.begin,
                                      nodes.end - nodes.begin, x_.rows.width, by_type_, add});
    }
    const Operand &x_, &out_;
    bool by_type_;
    typename RowOp<T, Place>::template Constants<T> factor_;
};

template <typename T, typename Place>
class NormalizeOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit NormalizeOp(const NormalizeSpec& spec) : spec_(spec) {}
    void forward(Step& step, Range nodes) const override {
        Normalize<T> arguments = common(step, nodes);
        arguments.out = step.value(spec_.out, nodes.begin);
        this->run(RowFunction::normalize_forward, step, arguments);
    }
    void backward(Step& step, Range nodes) const override {
        Normalize<T> arguments = common(step, nodes);
        arguments.g = step.gradient(spec_.out, nodes.begin);
        arguments.dx = step.wanted_gradient(spec_.x, nodes.begin);
        arguments.d_density = step.wanted_gradient(spec_.density, nodes.begin);
        this->run(RowFunction::normalize_backward, step, arguments);
    }

private:
    Normalize<T> common(const Step& step, Range nodes) const {
        Normalize<T> arguments{};
        arguments.x = step.value(spec_.x, nodes.begin);
        arguments.density = step.value(spec_.density, nodes.begin);
        arguments.count = nodes.end - nodes.begin;
        arguments.width = spec_.x.rows.width;
        arguments.density_width = spec_.density.rows.width;
        arguments.add_x = spec_.x.accumulate;
        arguments.add_density = spec_.density.accumulate;
        arguments.alpha = spec_.alpha;
        arguments.beta = spec_.beta;
        return arguments;
    }
    const NormalizeSpec& spec_;
};

template <typename T, typename Place>
class ProductOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit ProductOp(const ProductSpec& spec) : spec_(spec) {}
    void forward(Step& step, Range nodes) const override {
        Product<T> arguments = common(step, nodes);
        arguments.out = step.value(spec_.out, nodes.begin);
        this->run(RowFunction::product_forward, step, arguments);
    }
    void backward(Step& step, Range nodes) const override {
        Product<T> arguments = common(step, nodes);
        arguments.g = step.gradient(spec_.out, nodes.begin);
        arguments.dx = step.wanted_gradient(spec_.x, nodes.begin);
        arguments.dy = step.wanted_gradient(spec_.y, nodes.begin);
        this->run(RowFunction::product_backward, step, arguments);
    }

private:
    Product<T> common(const Step& step, Range nodes) const {
        Product<T> arguments{};
        arguments.x = step.value(spec_.x, nodes.begin);
        arguments.y = step.value(spec_.y, nodes.begin);
        arguments.count = nodes.end - nodes.begin;
        arguments.width = spec_.x.rows.width;
        arguments.add_x = spec_.x.accumulate;
        arguments.add_y = spec_.y.accumulate;
        return arguments;
    }
    const ProductSpec& spec_;
};

template <typename T, typename Place>
class SumOp : public RowOp<T, Place> {
    using Step = typename RowOp<T, Place>::Step;

public:
    explicit SumOp(const SumSpec& spec) : x_(spec.inputs), out_(spec.out) {}
    void forward(Step& step, Range nodes) const override {
        run(RowFunction::sum_forward, step, nodes, step.value(out_, nodes.begin),
            [&](const Operand& x) { return step.value(x, nodes.begin); });
    }
    void backward(Step& step, Range nodes) const override {
        run(RowFunction::sum_backward, step, nodes, step.gradient(out_, nodes.begin),
            [&](const Operand& x) { return step.wanted_gradient(x, nodes.begin); });
    }

private:
    // In calls of SUM_TERMS; terms whose rows are null are left out.
    template <typename RowsOf>
    void run(RowFunction function, const Step& step, Range nodes, T* sum,
             const RowsOf& rows_of) const {
        Sum<T> arguments{};
        arguments.sum = sum;
        arguments.count = nodes.end - nodes.begin;
        arguments.width = out_.rows.width;
        const auto flush = [&] {
            if (arguments.num_terms == 0) return;
            RowOp<T, Place>::run(function, step, arguments);
            arguments.num_terms = 0;
            arguments.add_sum = 1;
        };
        for (const Operand& x : x_) {
            T* const rows = rows_of(x);
            if (rows == nullptr) continue;
            if (arguments.num_terms == SUM_TERMS) flush();
            const auto k = static_cast<std::size_t>(arguments.num_terms++);
            arguments.term[k] = rows;
            arguments.add[k] = x.accumulate;
        }
        flush();
    }
    const std::deque<Operand>& x_;
    const Operand& out_;
};

const RegisterRowOp<ScaleSpec, ScaleOp> scale{"scale"};
const RegisterRowOp<NormalizeSpec, NormalizeOp> normalize{"normalize"};
const RegisterRowOp<ProductSpec, ProductOp> registered_product{"product"};
const RegisterRowOp<SumSpec, SumOp> sum{"sum"};

}  // namespace

}  // namespace mdcg
