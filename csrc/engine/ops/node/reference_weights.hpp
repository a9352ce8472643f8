// How much an atom resembles the reference atoms of its type in Grimme's D3 dispersion:
//     w_a = exp(-steepness (cn - cn_a)^2) / sum_b exp(-steepness (cn - cn_b)^2),
// 0 where the type has no reference a, whose number is negative.
#pragma once

#include "engine/op.hpp"
#include "kernels/row_functions.hpp"

namespace mdcg {

struct ReferenceWeightsSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    std::vector<double> references;  // [T][MAX_REFERENCES]
    double steepness;

    explicit ReferenceWeightsSpec(const LayerEntry& given) : OpSpec(given) {
        references =
            fields.values<double>("references", {num_types, MAX_REFERENCES}, Content::constants);
        steepness = fields.number("steepness");
        for (std::size_t t = 0; t < references.size(); t += MAX_REFERENCES)
            if (references[t] < 0)
                fields.fail("references", "a type without any", "at least one for each type");
        if (x.rows.features != 1 || out.rows.features != MAX_REFERENCES)
            fields.fail("out", "values of other sizes", "1x0e in x and 7x0e in out");
    }
};
inline const RegisterSpec<ReferenceWeightsSpec> reference_weights_spec{"reference_weights"};

}  // namespace mdcg
