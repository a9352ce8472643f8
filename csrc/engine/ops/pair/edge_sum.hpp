// Sums of a radial function over the neighbours: densities.
//     out_i = sum_e cutoff act(radial(e)), where the cutoff is on the weights; else
//     out_i = sum_e act(radial(e))
#pragma once

#include "engine/edges/radial.hpp"
#include "engine/op.hpp"

namespace mdcg {

struct EdgeSumSpec : OpSpec {
    const Operand& out = output("out");
    RadialSpec radial;  // as the manifest has it
    RadialSpec inner;   // without the cutoff outside of the activation
    bool tanh_square = false;

    explicit EdgeSumSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::receivers;
        if (out.rows.blocks.size() != 1 || out.rows.blocks[0].l != 0)
            fields.fail("out", "a value of other irreps", "scalars, one per output");
        const Fields from = fields.object("radial");
        radial = RadialSpec::read(from, given.info, out.rows.blocks[0].mul);
        if (!radial.sender_value.empty() || !radial.receiver_value.empty())
            from.fail("edge_sum sees features of nodes, expected tables by type");
        inner = radial;
        inner.functions.cutoff_on_basis = true;
        if (!radial.functions.cutoff_on_basis) inner.functions.cutoff_power = 0;
        const std::string activation = fields.text("activation", "none");
        if (activation != "none" && activation != "tanh_square")
            fields.fail("activation", "'" + activation + "'", "tanh_square or none");
        tanh_square = activation == "tanh_square";
    }
};
inline const RegisterSpec<EdgeSumSpec> edge_sum_spec{"edge_sum"};

}  // namespace mdcg
