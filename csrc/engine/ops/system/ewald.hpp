// The energy of Gaussian charges that the network predicts (latent Ewald summation): in periodic
// cells a sum over the waves of the cell, and in open systems a sum over pairs.
#pragma once

#include "engine/ops/system/wave_spec.hpp"
#include "engine/ops/system/waves.hpp"

namespace mdcg {

// With S = sum_j q_j exp(i k r_j) and the weights w of waves,
//     E = sum_k w |S|^2 - c sum_i q_i^2,    c = factor / (sigma (2 pi)^1.5),
// where the term with c removes the interaction of each charge with itself. Without a cell,
//     E = factor / (2 pi) sum_i<j q_i q_j erf(r / (sqrt(2) sigma)) / r,
// plus that term, unless it is removed. The energy of an atom is q_i dE/dq_i / 2.
struct EwaldSpec : WaveSpec {
    const Operand& x = input("x", saved_for_backward);
    GaussianCharges charges{};
    double own = 0;  // c
    bool own_removed = false;

    explicit EwaldSpec(const LayerEntry& given);
};

}  // namespace mdcg
