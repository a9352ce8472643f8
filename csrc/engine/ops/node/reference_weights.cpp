// How much an atom resembles the reference atoms of its type in Grimme's D3 dispersion:
//     w_a = exp(-steepness (cn - cn_a)^2) / sum_b exp(-steepness (cn - cn_b)^2).
// w_a is 0 if the type has no reference a, which a negative cn_a says.
#include "engine/ops/node/row_op.hpp"

namespace mdcg {

namespace {

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

    template <typename T, class Keep>
    void prepare(ReferenceWeights<T>& a, const Keep& keep) const {
        keep(a.references, references);
        a.steepness = steepness;
        a.x_width = x.rows.width;
        a.out_width = out.rows.width;
        a.add = x.accumulate;
    }
    template <typename T, class Rows, class Launch>
    void run(const Rows& rows, ReferenceWeights<T> a, const Launch& launch) const {
        a.x = rows.value(x);
        a.out = rows.value(out);
        a.g = rows.gradient(out);
        a.dx = rows.gradient(x);
        a.types = rows.types();
        launch(a);
    }
};
const RegisterRowOp<ReferenceWeightsSpec, ReferenceWeights> registered{"reference_weights"};

}  // namespace

}  // namespace mdcg
