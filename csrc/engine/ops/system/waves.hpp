// The plane waves of a periodic cell, and their weights in the energy of Gaussian charges.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/backend/cpu/wave_kernels.hpp"
#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

constexpr double TWO_PI = 6.283185307179586477;

// Charges with the density of a Gaussian interact through the waves of the cell not shorter than a
// spacing. This sphere of waves is part of a model.
struct GaussianCharges {
    double sigma;    // width, Å
    double spacing;  // shortest wave length, Å
    double factor;   // 1 / (2 epsilon_0), eV Å / e^2
};

// E = sum_k w |sum_j q_j exp(i k r_j)|^2 over half of the waves: one of each pair k, -k.
class Waves {
public:
    // Finds the waves of a cell [3][3], rows are vectors: those with the integers of the waves of
    // `chosen_in`, or of the cell itself if that is null. Returns whether a cell has changed.
    // Throws EngineError if there are too many, and GeometryError if a cell is flat.
    bool update(const double* cell, const GaussianCharges& charges,
                const double* chosen_in = nullptr);

    // Whether the waves of another cell would have the same largest integers, so that about as many
    // waves are expected.
    bool has_bounds_of(const double* cell, const GaussianCharges& charges) const;

    std::int64_t num_pairs() const { return static_cast<std::int64_t>(weights_.size()) / 2; }
    const std::vector<WaveColumn>& columns() const { return columns_; }
    // [pair][2] of n3 = m and -m; 0: not a wave of this half
    const std::vector<double>& weights() const { return weights_; }
    int bound(std::size_t direction) const { return bounds_[direction]; }  // largest |n|
    // The fractions of the cell of a position, as fractions of 2^64. They lose no digits in
    // products with integers.
    std::array<std::uint64_t, 3> phases(const double* position) const;
    const Matrix3& inverse() const { return inverse_; }  // of the cell
    // The wave vector, 1/Å.
    Vector3 vector(double n1, double n2, double n3) const;

private:
    // The largest |n|, not rounded down.
    static std::array<double, 3> largest_numbers(const double* cell,
                                                 const GaussianCharges& charges);

    std::vector<double> cells_;  // [2][9] cell, and that of the integers; empty: no waves yet
    Matrix3 inverse_{};
    std::array<int, 3> bounds_{};
    std::vector<WaveColumn> columns_;
    std::vector<double> weights_;
};

}  // namespace mdcg
