// Charges are shifted until they add up to the total of the system, for each spin.
#pragma once

#include <cstddef>

#include "engine/ops/system/wave_spec.hpp"

namespace mdcg {

// x has a charge for each of two spins, and perhaps vectors, which stay as they are. With the sum
// q of the charges of a spin, the sum f of its weights and the wanted total Q, the charge of an
// atom grows by weight / f (Q - q). Where f is 0 it counts as 1.
struct TotalChargeSpec : WaveSpec {
    const Operand& x = input("x");
    const Operand& weights = input("weights", saved_for_backward);
    const Operand& out = output("out");

    explicit TotalChargeSpec(const LayerEntry& given);

    // The total of a spin from the inputs of the system: half of the charge, and half of the
    // electrons without a partner, one less than the spin multiplicity.
    double total(int spin, const double* inputs) const {
        return 0.5 * (inputs[charge_] + (spin == 0 ? 1 : -1) * (inputs[spin_] - 1));
    }

private:
    std::size_t charge_ = 0, spin_ = 0;  // numbers of inputs
};

}  // namespace mdcg
