// E_i += scale * x[channel] + shift, in double; scale and shift are numbers, or one for each type.
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct EnergySpec : OpSpec {
    const Operand& x = input("x");
    std::int64_t channel = 0;
    std::vector<double> scale, shift;  // [T]

    explicit EnergySpec(const LayerEntry& given) : OpSpec(given) {
        const Block& block = x.rows.blocks[0];
        if (block.l != 0) fields.fail("x starts with " + block_text(block) + ", expected scalars");
        channel = fields.integer("channel", 0, block.mul - 1);
        scale = by_type("scale");
        shift = by_type("shift");
    }

private:
    std::vector<double> by_type(const char* key) const {
        std::vector<double> values = fields.read<double>(one_or_by_type(key, Content::constants));
        values.resize(static_cast<std::size_t>(num_types), values[0]);
        return values;
    }
};
inline const RegisterSpec<EnergySpec> energy_spec{"energy"};

}  // namespace mdcg
