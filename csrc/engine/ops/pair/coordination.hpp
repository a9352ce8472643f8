// Coordination numbers of Grimme's D3 dispersion, without edges:
//     cn_i = sum_j 1 / (1 + exp(-steepness ((R_i + R_j) / r_ij - 1))),  r_ij <= cutoff,
// with radii R by type.
#pragma once

#include "core/text.hpp"
#include "engine/op.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

// A length up to that of the package.
inline double read_reach(const Fields& fields, double r_max) {
    const double cutoff = fields.number("cutoff");
    if (!(cutoff > 0 && cutoff <= r_max))
        fields.fail("cutoff", number_text(cutoff), "a length up to r_max, " + number_text(r_max));
    return cutoff;
}

struct CoordinationSpec : OpSpec {
    const Operand& out = output("out");
    std::vector<double> radii;  // [T] Å
    double steepness, cutoff;

    explicit CoordinationSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::points;
        radii = fields.values<double>("radii", {num_types}, Content::constants);
        steepness = fields.number("steepness");
        cutoff = read_reach(fields, given.info.r_max);
        if (out.rows.features != 1) fields.fail("out", "a value of more than a number", "1x0e");
    }
};
inline const RegisterSpec<CoordinationSpec> coordination_spec{"coordination"};

}  // namespace mdcg
