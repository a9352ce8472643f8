// Sums over the waves of a cell for charges and dipoles, on CPUs and in double precision.
#pragma once

#include <complex>
#include <cstdint>
#include <vector>

#include "engine/communicator.hpp"
#include "engine/cpu_op.hpp"
#include "engine/ops/system/waves.hpp"

namespace mdcg {

// q and p of an atom
using Moment = std::array<double, 4>;
// phi, its slope and its second derivatives as xx yy zz xy xz yz
using Potential = std::array<double, 10>;
// [num_waves] sum_j (q_j + i k p_j) exp(i k r_j)
using Amplitudes = std::vector<std::complex<double>>;

class MultipoleWaves {
public:
    // See Waves::update.
    bool update(const double* cell, const GaussianCharges& gaussians, const double* chosen_in);
    const Waves& waves() const { return waves_; }

    // Wave 2 i + s of pair i has n3 = m for s = 0 and -m for s = 1; a weight of 0 means that there
    // is no such wave in the half of the sphere.
    std::size_t count() const { return vectors_.size(); }
    const Vector3& vector(std::size_t wave) const { return vectors_[wave]; }  // 1/Å
    const std::vector<Vector3>& vectors() const { return vectors_; }
    double longest() const { return longest_; }  // length of the longest vector, 1/Å
    double square(std::size_t wave) const { return squares_[wave]; }
    double weight(std::size_t wave) const { return waves_.weights()[wave]; }

    // Atoms of this process, which threads share.
    struct Atoms {
        const double* positions;  // [num_nodes][3] Å
        Range nodes;
        int threads;
    };
    // Amplitudes of `moments` [channel][num_nodes]. They are the same for every number of threads,
    // because integers are added. If moments are too large, they are zero, and `total` is not below
    // MAX_CHARGE.
    std::vector<Amplitudes> amplitudes(const Atoms& atoms,
                                       const std::vector<std::vector<Moment>>& moments,
                                       bool dipoles, std::int64_t& total) const;
    // Replaces amplitudes by sums over all processes. Throws EngineError if the total of all is too
    // large.
    static void share(std::vector<Amplitudes>& amplitudes, std::int64_t total,
                      Communicator* communicator);
    // Potentials sum_k w Re(exp(i k r) A*) at atoms for the amplitudes A times the weights w.
    // Without `second` the second derivatives are zero.
    void potentials(const Atoms& atoms, const Amplitudes& weighted, bool second,
                    std::vector<Potential>& found) const;

private:
    struct Tile;
    void fill(Tile& tile, const Atoms& atoms, std::int64_t number) const;
    template <typename Body>
    void each_tile(const Atoms& atoms, const Body& body) const;

    Waves waves_;
    std::vector<Vector3> vectors_;  // [waves]
    std::vector<double> squares_;   // [waves] k^2
    double longest_ = 0;
};

}  // namespace mdcg
