// The potential of a uniform external field.
#pragma once

#include <array>
#include <cstddef>

#include "engine/ops/system/wave_spec.hpp"

namespace mdcg {

// With the field F, which is the slope of the potential, an atom at r gets the scalars F (r - c)
// and F r, and the vector F. The centre c is the mean position of all atoms.
struct ExternalPotentialSpec : WaveSpec {
    const Operand& out = output("out");

    explicit ExternalPotentialSpec(const LayerEntry& given);

    // The field, eV / Å / e. Throws EngineError if it is not zero and the system is not open, or on
    // several processes.
    template <typename Step>
    std::array<double, 3> field(const Step& step, std::int64_t num_local) const {
        return field(step.inputs, step.cell == nullptr ? nullptr : step.periodic, step.communicator,
                     num_local);
    }

private:
    std::array<double, 3> field(const double* inputs, const bool* periodic,
                                Communicator* communicator, std::int64_t num_local) const;

    std::array<std::size_t, 3> components_{};  // numbers of inputs
};

}  // namespace mdcg
