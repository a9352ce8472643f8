// An operation that only tests have: what CONTRIBUTING.md says is all that one needs. Its row in
// FORMAT.md would be:
// | `toy_square` | `x`, `out`, `factor`, `input` | out = factor x² of each item, times the input of
// the system that `input` names, unless it is absent; x has scalars only |
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct ToySquareSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    double factor = fields.number("factor");
    bool has_input = fields.has("input");
    std::size_t number = has_input ? input_number(fields.text("input")) : 0;

    template <typename Step>
    double factor_of(const Step& step) const {
        return has_input ? factor * step.inputs[number] : factor;
    }

    explicit ToySquareSpec(const LayerEntry& given) : OpSpec(given) {
        expect_same_irreps(x, out);
        for (const Block& block : x.rows.blocks)
            if (block.l != 0) fields.fail("squares " + block_text(block) + ", expected scalars");
    }
};

}  // namespace mdcg
