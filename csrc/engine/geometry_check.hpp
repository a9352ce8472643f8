// Cells and positions that a neighbour list can be made of, and what it needs of 3x3 matrices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace mdcg {

// Positions or a cell that no neighbour list can be made of; one sentence.
struct GeometryError : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

using Vector3 = std::array<double, 3>;
using Matrix3 = std::array<Vector3, 3>;

// Throw GeometryError, one sentence: what, got, expected.
void check_positions(std::int64_t num_atoms, const double* positions);
void check_distance(std::int64_t num_atoms, const double* positions, const Matrix3& inverse,
                    const std::array<bool, 3>& periodic);

// The cell vectors of periodic directions, and for the others unit vectors perpendicular to them.
Matrix3 complete_cell(const double* cell, const std::array<bool, 3>& periodic);

Matrix3 invert(const Matrix3& m);
Matrix3 multiply(const Matrix3& a, const Matrix3& b);
double smallest_singular_value(const Matrix3& m);

// Shrinks gaps wider than `reach` between coordinates along an open direction, if there are any
// that matter, and moves the lowest to 0: an atom that flew off costs no bins. Returns the extent.
double close_gaps(double* along, std::size_t count, double reach, double width);

}  // namespace mdcg
