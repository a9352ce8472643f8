// Scalars through activations; other blocks times activations of scalars.
#pragma once

#include "engine/backend/cpu/simd.hpp"
#include "engine/ops/op.hpp"

namespace mdcg {

struct GateSpec : OpSpec {
    struct Function {
        Activation kind;
        double factor;
    };
    struct Scalar {
        std::size_t in, out;
        Function f;
    };
    struct Gated {
        std::size_t gate;
        int gate_offset;
        std::size_t in, out;
        Function f;
    };

    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    std::vector<Scalar> scalars;
    std::vector<Gated> gated;

    // Every block of out is written once.
    explicit GateSpec(const LayerEntry& given);
};
inline const RegisterSpec<GateSpec> gate_spec{"gate"};

}  // namespace mdcg
