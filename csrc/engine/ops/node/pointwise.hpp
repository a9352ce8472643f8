// Operations that treat every node by itself: scale, normalize, product, sum.
#pragma once

#include "engine/op.hpp"

namespace mdcg {

// Row times a number, or times the number of its type.
struct ScaleSpec : OpSpec {
    const Operand& x = input("x");
    const Operand& out = output("out");
    const Tensor& factor = one_or_by_type("factor");

    explicit ScaleSpec(const LayerEntry& given) : OpSpec(given) { expect_same_irreps(x, out); }
};

// out = x / (density * beta + alpha)
struct NormalizeSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& density = input("density", saved_for_backward);
    const Operand& out = output("out");
    double alpha = fields.number("alpha"), beta = fields.number("beta");

    explicit NormalizeSpec(const LayerEntry& given) : OpSpec(given) {
        expect_same_irreps(x, out);
        if (density.rows.features != 1)
            fields.fail("density has " + std::to_string(density.rows.features) +
                        " features, expected 1x0e");
    }
};

// out = x * y, item by item; only scalars multiply to an irrep of their own.
struct ProductSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& y = input("y", saved_for_backward);
    const Operand& out = output("out");

    explicit ProductSpec(const LayerEntry& given) : OpSpec(given) {
        expect_same_irreps(x, out);
        expect_same_irreps(y, out);
        for (const Block& block : y.rows.blocks)
            if (block.l != 0) fields.fail("multiplies " + block_text(block) + ", expected scalars");
    }
};

// out is the sum of all inputs, one or more.
struct SumSpec : OpSpec {
    const Operand& out = output("out");

    explicit SumSpec(const LayerEntry& given) : OpSpec(given) {
        is_sum = true;
        for (const std::string& term : fields.texts("x"))
            inputs.push_back(given.operand(fields, "x", term));
        if (inputs.empty()) fields.fail("x", "empty", "one value or more");
        for (const Operand& x : inputs) expect_same_irreps(x, out);
    }
};

inline const RegisterSpec<ScaleSpec> scale_spec{"scale"};
inline const RegisterSpec<NormalizeSpec> normalize_spec{"normalize"};
inline const RegisterSpec<ProductSpec> product_spec{"product"};
inline const RegisterSpec<SumSpec> sum_spec{"sum"};

}  // namespace mdcg
