// An operation that only tests have: what CONTRIBUTING.md says is all that one needs. Its row in
// FORMAT.md would be:
// | `toy_square` | `x`, `out`, `factor` | out = factor x² of each item; x has scalars only |
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct ToySquareSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    double factor = fields.number("factor");

    explicit ToySquareSpec(const LayerEntry& given) : OpSpec(given) {
        expect_same_irreps(x, out);
        for (const Block& block : x.rows.blocks)
            if (block.l != 0) fields.fail("squares " + block_text(block) + ", expected scalars");
    }
};

}  // namespace mdcg
