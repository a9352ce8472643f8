// Operations that treat every node by itself: type_rows, scale, normalize, product, sum, energy.
#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

// out[n] = table[type of n]
struct TypeRowsSpec : OpSpec {
    const Operand& out = output("out");
    const Tensor& table = fields.tensor("table", {num_types, out.rows.features});

    explicit TypeRowsSpec(const LayerEntry& given) : OpSpec(given) { input_tensors = {&table}; }

    template <typename T, class Keep>
    void prepare(TypeRows<T>& a, const Keep& keep) const {
        keep(a.table, out.rows.padded(fields.read<T>(table), num_types));
        a.width = out.rows.width;
    }
    template <typename T, class Rows, class Launch>
    void run(const Rows& rows, TypeRows<T> a, const Launch& launch) const {
        a.out = rows.value(out);
        a.types = rows.types();
        launch(a);
    }
};
const RegisterRowOp<TypeRowsSpec, TypeRows> type_rows{"type_rows"};

// out = x times a number, or times the number of the node's type.
struct ScaleSpec : OpSpec {
    const Operand& x = input("x");
    const Operand& out = output("out");
    const Tensor& factor = one_or_by_type("factor");

    explicit ScaleSpec(const LayerEntry& given) : OpSpec(given) { expect_same_irreps(x, out); }

    template <typename T, class Keep>
    void prepare(Scale<T>& a, const Keep& keep) const {
        keep(a.factor, fields.read<T>(factor));
        a.typed = factor.count > 1;
        a.width = x.rows.width;
    }
    template <typename T, class Rows, class Launch>
    void run(const Rows& rows, Scale<T> a, const Launch& launch) const {
        a.x = rows.backward ? rows.gradient(out) : rows.value(x);
        a.out = rows.backward ? rows.gradient(x) : rows.value(out);
        a.add = rows.backward && x.accumulate;
        a.types = rows.types();
        launch(a);
    }
};
const RegisterRowOp<ScaleSpec, Scale> scale{"scale"};

// out = x / (density * beta + alpha)
struct NormalizeSpec : TwoInputsSpec {
    double alpha = fields.number("alpha"), beta = fields.number("beta");

    explicit NormalizeSpec(const LayerEntry& given) : TwoInputsSpec(given, "density") {
        expect_same_irreps(x, out);
        if (y.rows.features != 1)
            fields.fail("density has " + std::to_string(y.rows.features) +
                        " features, expected 1x0e");
    }

    template <typename T, class Keep>
    void prepare(Normalize<T>& a, const Keep&) const {
        a.width = x.rows.width;
        a.y_width = y.rows.width;
        a.alpha = alpha;
        a.beta = beta;
    }
};
const RegisterRowOp<NormalizeSpec, Normalize> normalize{"normalize"};

// out = x * y, item by item. Only products of scalars are equivariant.
struct ProductSpec : TwoInputsSpec {
    explicit ProductSpec(const LayerEntry& given) : TwoInputsSpec(given) {
        expect_same_irreps(x, out);
        expect_same_irreps(y, out);
        for (const Block& block : y.rows.blocks)
            if (block.l != 0) fields.fail("multiplies " + block_text(block) + ", expected scalars");
    }

    template <typename T, class Keep>
    void prepare(Product<T>& a, const Keep&) const {
        a.width = x.rows.width;
    }
};
const RegisterRowOp<ProductSpec, Product> registered_product{"product"};

// out is the sum of one or more inputs.
struct SumSpec : OpSpec {
    const Operand& out = output("out");

    explicit SumSpec(const LayerEntry& given) : OpSpec(given) {
        is_sum = true;
        for (const std::string& term : fields.texts("x"))
            inputs.push_back(given.operand(fields, "x", term));
        if (inputs.empty()) fields.fail("x", "empty", "one value or more");
        for (const Operand& x : inputs) expect_same_irreps(x, out);
    }

    template <typename T, class Keep>
    void prepare(Sum<T>& a, const Keep&) const {
        a.width = out.rows.width;
    }
    // A launch takes up to SUM_TERMS terms. Gradients that are not wanted are left out.
    template <typename T, class Rows, class Launch>
    void run(const Rows& rows, Sum<T> a, const Launch& launch) const {
        a.sum = rows.backward ? rows.gradient(out) : rows.value(out);
        const auto flush = [&] {
            if (a.num_terms > 0) launch(a);
            a.num_terms = 0;
            a.add_sum = 1;
        };
        for (const Operand& x : inputs) {
            T* const term = rows.backward ? rows.gradient(x) : rows.value(x);
            if (term == nullptr) continue;
            if (a.num_terms == SUM_TERMS) flush();
            const auto k = static_cast<std::size_t>(a.num_terms++);
            a.term[k] = term;
            a.add[k] = x.accumulate;
        }
        flush();
    }
};
const RegisterRowOp<SumSpec, Sum> sum{"sum"};

// E_i += scale * x[channel] + shift, in double; scale and shift are numbers, or one for each type.
struct EnergySpec : OpSpec {
    const Operand& x = input("x");
    std::int64_t channel = 0;
    const Tensor& scale = one_or_by_type("scale", Content::constants);
    const Tensor& shift = one_or_by_type("shift", Content::constants);

    explicit EnergySpec(const LayerEntry& given) : OpSpec(given) {
        const Block& block = x.rows.blocks[0];
        if (block.l != 0) fields.fail("x starts with " + block_text(block) + ", expected scalars");
        channel = fields.integer("channel", 0, block.mul - 1);
        for (const Tensor* const tensor : {&scale, &shift}) {
            input_tensors.push_back(tensor);
            by_type(*tensor);  // throws if a number is not finite
        }
    }

    template <typename T, class Keep>
    void prepare(Energy<T>& a, const Keep& keep) const {
        keep(a.scale, by_type(scale));
        keep(a.shift, by_type(shift));
        a.width = x.rows.width;
        a.channel = static_cast<int>(channel);
        a.add = x.accumulate;
    }
    template <typename T, class Rows, class Launch>
    void run(const Rows& rows, Energy<T> a, const Launch& launch) const {
        const auto& step = rows.step;
        a.x = rows.value(x);
        a.dx = rows.gradient(x);
        a.energies = step.energies + rows.nodes.begin;
        if (step.energy_weights != nullptr) a.weights = step.energy_weights + rows.nodes.begin;
        a.types = rows.types();
        launch(a);
    }

private:
    std::vector<double> by_type(const Tensor& tensor) const {
        std::vector<double> values = fields.read<double>(tensor);
        values.resize(static_cast<std::size_t>(num_types), values[0]);
        return values;
    }
};
const RegisterRowOp<EnergySpec, Energy> energy{"energy"};

}  // namespace

}  // namespace mdcg
