// Energies of pairs: screened nuclear repulsion (Ziegler, Biersack, Littmark), with a cutoff,
//     E_i += sum_e factor / r * sum_k c_k exp(-x_k r / a) * cutoff(r / r_max);
// factor, a and r_max by types of receiver and sender [T][T] (r_max may be one number), x_k > 0.
#pragma once

#include "core/text.hpp"
#include "engine/edges/radial.hpp"
#include "engine/op.hpp"

namespace mdcg {

struct PairEnergySpec : OpSpec {
    std::vector<double> factor, a, r_max;  // [T][T]
    std::vector<double> coefficients, exponents;
    double power = 0;

    explicit PairEnergySpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::receivers;
        if (fields.text("kind") != "zbl")
            fields.fail("kind", "'" + fields.text("kind") + "'", "zbl");
        const std::int64_t n = num_types;
        factor = fields.values<double>("factor", {n, n}, Content::constants);
        a = fields.values<double>("a", {n, n}, Content::constants);
        r_max = read_cutoffs(fields, given.info);
        r_max.resize(a.size(), r_max[0]);  // [T][T] also where it is one number
        coefficients = fields.numbers("coefficients");
        exponents = fields.numbers("exponents");
        if (coefficients.size() > limits::MAX_SCREENING_TERMS)
            fields.fail("coefficients", std::to_string(coefficients.size()) + " numbers",
                        "at most " + std::to_string(limits::MAX_SCREENING_TERMS));
        if (coefficients.size() != exponents.size())
            fields.fail("exponents", std::to_string(exponents.size()) + " numbers",
                        std::to_string(coefficients.size()) + ", as many as coefficients");
        power = fields.number("p");
        check_cutoff_power(fields, power);
        for (const double length : a)
            if (!(length > 0)) fields.fail("a", number_text(length), "lengths over 0");
    }
};
inline const RegisterSpec<PairEnergySpec> pair_energy_spec{"pair_energy"};

}  // namespace mdcg
