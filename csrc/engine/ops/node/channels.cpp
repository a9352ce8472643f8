// Operations that mix the channels or the components of a node: dot, modulate, layer_norm,
// rms_norm.
#include "core/text.hpp"
#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

// The multiplicity that all blocks of a value have.
int equal_channels(const OpSpec& op, const char* key, const Operand& x) {
    for (const Block& block : x.rows.blocks)
        if (block.mul != x.rows.blocks[0].mul)
            op.fields.fail(key, irreps_text(x.rows), "blocks of the same multiplicity");
    return x.rows.blocks[0].mul;
}

int components_of(const Rows& rows) {
    int count = 0;
    for (const Block& block : rows.blocks) count += block.dim();
    return count;
}

void expect_scalars(const OpSpec& op, const char* key, const Operand& x, int blocks, int channels) {
    bool fits = static_cast<int>(x.rows.blocks.size()) == blocks;
    for (const Block& block : x.rows.blocks)
        fits = fits && block.l == 0 && block.parity == 1 && block.mul == channels;
    if (fits) return;
    std::string expected;
    for (int b = 0; b < blocks; ++b)
        expected += (b > 0 ? "+" : "") + std::to_string(channels) + "x0e";
    op.fields.fail(key, irreps_text(x.rows), expected);
}

// out[u] = sum over the components of all blocks of x[u] y[u]
struct DotSpec : TwoInputsSpec {
    explicit DotSpec(const LayerEntry& given) : TwoInputsSpec(given) {
        if (!same_irreps(x.rows, y.rows))
            fields.fail("y", irreps_text(y.rows), irreps_text(x.rows) + " as x");
        expect_scalars(*this, "out", out, 1, equal_channels(*this, "x", x));
    }

    template <typename T, class Keep>
    void prepare(Dot<T>& a, const Keep&) const {
        a.components = components_of(x.rows);
        a.channels = out.rows.width;
    }
};
const RegisterRowOp<DotSpec, Dot> registered_dot{"dot"};

// Every component of channel u of block b of x times y[b][u].
struct ModulateSpec : TwoInputsSpec {
    explicit ModulateSpec(const LayerEntry& given) : TwoInputsSpec(given) {
        expect_same_irreps(x, out);
        const int blocks = static_cast<int>(x.rows.blocks.size());
        expect_scalars(*this, "y", y, blocks, equal_channels(*this, "x", x));
    }

    template <typename T, class Keep>
    void prepare(Modulate<T>& a, const Keep& keep) const {
        std::vector<std::int32_t> first{0};
        for (const Block& block : x.rows.blocks) first.push_back(first.back() + block.dim());
        keep(a.first, first);
        a.blocks = static_cast<int>(x.rows.blocks.size());
        a.channels = x.rows.blocks[0].stride;
    }
};
const RegisterRowOp<ModulateSpec, Modulate> registered_modulate{"modulate"};

// What norms of rows have in common.
struct NormSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    double epsilon = fields.number("epsilon");

    explicit NormSpec(const LayerEntry& given) : OpSpec(given) {
        expect_same_irreps(x, out);
        if (!(epsilon > 0)) fields.fail("epsilon", number_text(epsilon), "a positive number");
    }

    template <class Arguments, class Rows, class Launch>
    void run(const Rows& rows, Arguments a, const Launch& launch) const {
        a.x = rows.value(x);
        a.out = rows.value(out);
        a.g = rows.gradient(out);
        a.dx = rows.gradient(x);
        a.width = x.rows.width;
        a.add = x.accumulate;
        a.epsilon = epsilon;
        launch(a);
    }
};

// out = (x - mean) / sqrt(variance + epsilon) weight + bias, over the channels of a node
struct LayerNormSpec : NormSpec {
    const Tensor& weight = fields.tensor("weight", {x.rows.blocks[0].mul});
    const Tensor& bias = fields.tensor("bias", {x.rows.blocks[0].mul});

    explicit LayerNormSpec(const LayerEntry& given) : NormSpec(given) {
        expect_scalars(*this, "x", x, 1, x.rows.blocks[0].mul);
    }

    template <typename T, class Keep>
    void prepare(LayerNorm<T>& a, const Keep& keep) const {
        const std::vector<T> ones(static_cast<std::size_t>(x.rows.features), T(1));
        keep(a.used, x.rows.padded(ones, 1));
        keep(a.weight, x.rows.padded(fields.read<T>(weight), 1));
        keep(a.bias, x.rows.padded(fields.read<T>(bias), 1));
        a.channels = x.rows.features;
    }
};
const RegisterRowOp<LayerNormSpec, LayerNorm> registered_layer_norm{"layer_norm"};

// out = x weight / sqrt(sum over blocks of factor |x|^2 + epsilon)
struct RmsNormSpec : NormSpec {
    std::vector<double> factors = fields.numbers("factors");
    const Tensor& weight = fields.tensor("weight", {channels()});

    explicit RmsNormSpec(const LayerEntry& given) : NormSpec(given) {
        const std::size_t blocks = x.rows.blocks.size();
        if (factors.size() != blocks)
            fields.fail("factors", std::to_string(factors.size()) + " numbers",
                        std::to_string(blocks) + ", one for each block of x");
        for (const double factor : factors)
            if (!(factor >= 0))
                fields.fail("factors", number_text(factor), "numbers that are not negative");
    }

    std::int64_t channels() const {
        std::int64_t count = 0;
        for (const Block& block : x.rows.blocks) count += block.mul;
        return count;
    }

    template <typename T, class Keep>
    void prepare(RmsNorm<T>& a, const Keep& keep) const {
        const std::vector<T> weights = fields.read<T>(weight);
        std::vector<T> of_items, squares;
        auto first = weights.begin();
        for (std::size_t b = 0; b < factors.size(); ++b) {
            const Block& block = x.rows.blocks[b];
            for (int m = 0; m < block.dim(); ++m)
                of_items.insert(of_items.end(), first, first + block.mul);
            squares.resize(of_items.size(), static_cast<T>(factors[b]));
            first += block.mul;
        }
        keep(a.weight, x.rows.padded(of_items, 1));
        keep(a.square, x.rows.padded(squares, 1));
    }
};
const RegisterRowOp<RmsNormSpec, RmsNorm> registered_rms_norm{"rms_norm"};

}  // namespace

}  // namespace mdcg
