// Potentials and energies of Gaussian charges and dipoles, which are summed over the waves of a
// periodic cell, or over pairs of an open system: what PolarMACE's charges feel of each other.
#pragma once

#include <array>
#include <vector>

#include "engine/ops/system/wave_spec.hpp"
#include "engine/ops/system/waves.hpp"

namespace mdcg {

// Moments of one degree for each l, such as the factors of charges and of dipoles.
using ByDegree = std::array<double, 2>;

// Channel c of x has charges q and, where x has vectors, dipoles p. Those of all atoms, times
// `source`, have the potential
//     phi(r) = factor / V sum_k exp(-k^2 (sigma^2 + s^2) / 2) / k^2 Re(exp(i k r) A*)
// for a receiver of width s, with A = sum_j (q_j + i k p_j) exp(i k r_j) and the waves of the cell
// but 0. In open systems dipoles, and slopes of the potential, are differences between points that
// are `offset` apart.
struct MultipoleSpec : WaveSpec {
    const Operand& x = input("x", saved_for_backward);
    GaussianCharges gaussians{};
    double offset = 0;  // Å
    ByDegree source{};
    bool own_removed = false;
    int channels = 0;
    bool dipoles = false;  // whether x has vectors

    explicit MultipoleSpec(const LayerEntry& given);

protected:
    // Whether a value is count x0e, or count x0e + count x1o.
    bool has_vectors(const char* key, const Operand& value, int count) const;
    ByDegree by_degree(const Fields& from, const char* key) const;
};

// The potential at an atom that a receiver of width `sigma` gets, times scale[0], and its slope,
// times scale[1]. The atom's own part is own[l] times its moment.
struct Receiver {
    double sigma;
    ByDegree scale, own;
};

// out has a channel for each channel of x and receiver: the number is c * receivers + w.
struct ReciprocalFieldSpec : MultipoleSpec {
    const Operand& out = output("out");
    std::vector<Receiver> receivers;
    bool slopes = false;  // whether out has vectors

    explicit ReciprocalFieldSpec(const LayerEntry& given);
};

// Half of the sum of moments times the potentials, or slopes, of a receiver of the same width.
struct ReciprocalEnergySpec : MultipoleSpec {
    ByDegree own{};

    explicit ReciprocalEnergySpec(const LayerEntry& given);
};

}  // namespace mdcg
