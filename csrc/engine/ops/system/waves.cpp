#include "engine/ops/system/waves.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.hpp"
#include "engine/error.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

// Waves on the sphere, as in cubes whose edge is a multiple of the spacing, belong to it.
constexpr double TOLERANCE = 1e-9;

double dot(const Vector3& a, const Vector3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

// The wave vector of integers in a cell with this inverse.
Vector3 wave_vector(const Matrix3& inverse, double n1, double n2, double n3) {
    Vector3 k;
    for (std::size_t d = 0; d < 3; ++d)
        k[d] = TWO_PI * (n1 * inverse[d][0] + n2 * inverse[d][1] + n3 * inverse[d][2]);
    return k;
}

}  // namespace

Vector3 Waves::vector(double n1, double n2, double n3) const {
    return wave_vector(inverse_, n1, n2, n3);
}

std::array<std::uint64_t, 3> Waves::phases(const double* position) const {
    std::array<std::uint64_t, 3> found{};
    for (std::size_t i = 0; i < 3; ++i) {
        const double s = position[0] * inverse_[0][i] + position[1] * inverse_[1][i] +
                         position[2] * inverse_[2][i];
        const double fraction = s - std::floor(s);  // may be rounded to 1
        if (fraction < 1) found[i] = static_cast<std::uint64_t>(fraction * 0x1p64);
    }
    return found;
}

std::array<double, 3> Waves::largest_numbers(const double* cell, const GaussianCharges& charges) {
    std::array<double, 3> found{};
    for (std::size_t i = 0; i < 3; ++i) {
        const Vector3 row{cell[3 * i], cell[3 * i + 1], cell[3 * i + 2]};
        found[i] = std::sqrt(dot(row, row)) / charges.spacing * (1 + TOLERANCE);
    }
    return found;
}

bool Waves::has_bounds_of(const double* cell, const GaussianCharges& charges) const {
    const std::array<double, 3> found = largest_numbers(cell, charges);
    return !cells_.empty() &&
           std::equal(bounds_.begin(), bounds_.end(), found.begin(),
                      [](int bound, double n) { return bound == std::floor(n); });
}

bool Waves::update(const double* cell, const GaussianCharges& charges, const double* chosen_in) {
    if (chosen_in == nullptr) chosen_in = cell;
    if (!cells_.empty() && std::equal(cell, cell + 9, cells_.begin()) &&
        std::equal(chosen_in, chosen_in + 9, cells_.begin() + 9))
        return false;
    columns_.clear();
    weights_.clear();
    cells_.clear();
    const Matrix3 rows = complete_cell(cell, {true, true, true});
    inverse_ = invert(rows);
    const double volume =
        std::abs(rows[0][0] * (rows[1][1] * rows[2][2] - rows[1][2] * rows[2][1]) -
                 rows[0][1] * (rows[1][0] * rows[2][2] - rows[1][2] * rows[2][0]) +
                 rows[0][2] * (rows[1][0] * rows[2][1] - rows[1][1] * rows[2][0]));
    const Matrix3 chosen_inverse = invert(complete_cell(chosen_in, {true, true, true}));
    const double longest = TWO_PI / charges.spacing;
    const double limit = longest * longest * (1 + TOLERANCE);
    const std::array<double, 3> bounds = largest_numbers(chosen_in, charges);
    double count = 1;
    for (std::size_t i = 0; i < 3; ++i) {
        count *= (i > 0 ? 2 : 1) * bounds[i] + 1;
        bounds_[i] = static_cast<int>(std::min(bounds[i], limits::MAX_WAVES));
    }
    if (!(count < limits::MAX_WAVES))
        throw EngineError(ErrorKind::unsupported,
                          "the long-range sum goes over up to " + number_text(count, 3) +
                              " waves of the cell, which are longer than " +
                              number_text(charges.spacing) + " Å, expected at most " +
                              number_text(limits::MAX_WAVES, 3) + ": use a smaller cell");
    // 0: not one of the waves, or the wave -k is counted
    const auto weight = [&](int n1, int n2, int n3) {
        if (n1 == 0 && (n2 < 0 || (n2 == 0 && n3 <= 0))) return 0.0;
        const Vector3 chosen = wave_vector(chosen_inverse, n1, n2, n3);
        if (dot(chosen, chosen) > limit) return 0.0;
        const Vector3 k = vector(n1, n2, n3);
        const double square = dot(k, k);
        return 2 * charges.factor / volume *
               std::exp(-0.5 * charges.sigma * charges.sigma * square) / square;
    };
    for (int n1 = 0; n1 <= bounds_[0]; ++n1)
        for (int n2 = n1 == 0 ? 0 : -bounds_[1]; n2 <= bounds_[1]; ++n2) {
            WaveColumn column{n1, n2, 0, 0, num_pairs()};
            for (int m = 0; m <= bounds_[2]; ++m) {
                const double up = weight(n1, n2, m), down = m > 0 ? weight(n1, n2, -m) : 0.0;
                if (up == 0 && down == 0) {
                    if (column.count > 0) break;
                    continue;
                }
                if (column.count++ == 0) column.from = m;
                weights_.insert(weights_.end(), {up, down});
            }
            if (column.count > 0) columns_.push_back(column);
        }
    cells_.assign(cell, cell + 9);
    cells_.insert(cells_.end(), chosen_in, chosen_in + 9);
    return true;
}

}  // namespace mdcg
