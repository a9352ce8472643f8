// Rows of ghosts: filled from their owners, and their gradients added to those of the owners.
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct ExchangeSpec : OpSpec {
    const Operand& x = input("x");

    explicit ExchangeSpec(const LayerEntry& given) : OpSpec(given) {
        forward_space = IterationSpace::exchange;
    }
};
inline const RegisterSpec<ExchangeSpec> exchange_spec{"exchange"};

}  // namespace mdcg
