// Grimme's D3 dispersion of pairs, without edges:
//     E_i += -1/2 sum_j sum_ab w_ia w_jb C6_ab (s6 f6(r_ij) / r_ij^6 + 3 s8 Q_i Q_j f8(r_ij) /
//     r_ij^8),  r_ij <= cutoff,
// with the weights w of references and Q by type. Damping "bj" (Becke and Johnson):
//     f_n / r^n = 1 / (r^n + (a1 sqrt(3 Q_i Q_j) + a2)^n);
// "zero": f_n = 1 / (1 + 6 (r / (rs_n R_ij))^-m), m = 14 for r^-6 and 16 for r^-8.
#pragma once

#include <cmath>

#include "engine/backend/cpu/pair_kernels.hpp"
#include "engine/error.hpp"
#include "engine/ops/node/reference_weights.hpp"
#include "engine/ops/pair/coordination.hpp"

namespace mdcg {

struct DispersionSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    std::vector<double> c6;            // [T][MAX_REFERENCES][T][MAX_REFERENCES] eV Å^6
    std::vector<PairDamping> damping;  // [T][T]
    double cutoff;

    explicit DispersionSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::points;
        inputs.front().gathered = inputs.front().whole_gradient = true;
        if (x.rows.features != MAX_REFERENCES) fields.fail("x", "a value of another size", "7x0e");
        const std::int64_t n = num_types;
        c6 =
            fields.values<double>("c6", {n, MAX_REFERENCES, n, MAX_REFERENCES}, Content::constants);
        cutoff = read_reach(fields, given.info.r_max);
        const auto q = fields.values<double>("q", {n}, Content::constants);
        const double s6 = fields.number("s6"), s8 = fields.number("s8");
        const std::string kind = fields.text("damping");
        if (kind != "bj" && kind != "zero") fields.fail("damping", "'" + kind + "'", "bj or zero");
        std::vector<double> radii;
        if (kind == "zero") radii = fields.values<double>("radii", {n, n}, Content::constants);
        for (std::size_t i = 0; i < q.size(); ++i)
            for (std::size_t j = 0; j < q.size(); ++j) {
                const double ratio = 3 * q[i] * q[j];  // of C8 and C6
                if (!(q[i] > 0)) fields.fail("q", number_text(q[i]), "lengths over 0");
                PairDamping pair{s6, 0, 0, s8 * ratio, 0, 0};
                if (kind == "bj") {
                    const double a = fields.number("a1") * std::sqrt(ratio) + fields.number("a2");
                    pair.a6 = std::pow(a, 6);
                    pair.a8 = std::pow(a, 8);
                } else {
                    const double r = radii[i * q.size() + j];
                    pair.p6 = 6 * std::pow(fields.number("rs6") * r, 14);
                    pair.p8 = 6 * std::pow(fields.number("rs8") * r, 16);
                }
                damping.push_back(pair);
            }
    }
};
inline const RegisterSpec<DispersionSpec> dispersion_spec{"dispersion"};

// Throws EngineError.
[[noreturn]] inline void refuse_energy_weights() {
    throw EngineError(ErrorKind::unsupported,
                      "energy_weights are given, which dispersion does not support: leave out "
                      "dispersion, or the weights");
}

}  // namespace mdcg
