// The energy of Gaussian charges that the network predicts (latent Ewald summation): in periodic
// cells a sum over the waves of the cell, and in open systems a sum over pairs.
#pragma once

#include <cstdint>

#include "engine/communicator.hpp"
#include "engine/op.hpp"
#include "engine/ops/system/waves.hpp"

namespace mdcg {

// With S = sum_j q_j exp(i k r_j) and the weights w of waves,
//     E = sum_k w |S|^2 - c sum_i q_i^2,    c = factor / (sigma (2 pi)^1.5),
// where the term with c removes the interaction of each charge with itself. Without a cell,
//     E = factor / (2 pi) sum_i<j q_i q_j erf(r / (sqrt(2) sigma)) / r,
// plus that term, unless it is removed. The energy of an atom is q_i dE/dq_i / 2.
struct EwaldSpec : OpSpec {
    const Operand& x = input("x", saved_for_backward);
    GaussianCharges charges{};
    double own = 0;  // c
    bool own_removed = false;

    explicit EwaldSpec(const LayerEntry& given);

    // Whether the sum goes over waves. Throws EngineError unless the system is periodic in three
    // directions or in none.
    bool is_periodic(const double* cell, const bool* periodic) const;
    // Throws EngineError, on all processes, if atoms of an open system are on several of them.
    void expect_one_process(Communicator* communicator, std::int64_t num_local) const;

private:
    double length(const char* key) const;
};

}  // namespace mdcg
