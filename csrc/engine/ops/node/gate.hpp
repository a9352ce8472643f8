// Scalars through activations; other blocks times activations of scalars.
#pragma once

#include "engine/backend/cpu/simd.hpp"
#include "engine/op.hpp"

namespace mdcg {

struct GateSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    std::vector<GateEntry> entries;  // every block of out is written by one of them

    explicit GateSpec(const LayerEntry& given);
};
inline const RegisterSpec<GateSpec> gate_spec{"gate"};

}  // namespace mdcg
