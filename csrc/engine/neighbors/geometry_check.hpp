// Cells and positions that a neighbour list can be made of, and what it needs of 3x3 matrices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "engine/error.hpp"

namespace mdcg {

// Positions or a cell that no neighbour list can be made of; one sentence.
struct GeometryError : std::invalid_argument {
    explicit GeometryError(Sentence sentence)
        : std::invalid_argument(sentence.text()), sentence(std::move(sentence)) {}
    Sentence sentence;
};

using Vector3 = std::array<double, 3>;
using Matrix3 = std::array<Vector3, 3>;

// Of one atom, with its own periodic images: more take minutes and all memory, and are not meant.
constexpr std::int64_t MAX_NEIGHBORS = 50000;
// Images of a list on either side along a cell vector.
constexpr std::int64_t MAX_STEPS = 510;

// Throw GeometryError, one sentence: what, got, expected.
void check_positions(std::int64_t num_atoms, const double* positions);
void check_distance(std::int64_t num_atoms, const double* positions, const Matrix3& inverse,
                    const std::array<bool, 3>& periodic);
// `heights`: distances of the cell's planes, Å; `reach`: how far a list sees.
void check_images(const Vector3& heights, const std::array<bool, 3>& periodic, double reach);
[[noreturn]] void refuse_neighbors(std::int64_t count, std::int64_t atom, double reach);
inline void check_neighbors(std::int64_t count, std::int64_t atom, double reach) {
    if (count > MAX_NEIGHBORS) refuse_neighbors(count, atom, reach);
}

// Of all atoms in one bin: atoms and images that have to be looked at.
void check_candidates(std::int64_t count, double reach);

// The cell vectors of periodic directions, and for the others unit vectors perpendicular to them.
Matrix3 complete_cell(const double* cell, const std::array<bool, 3>& periodic);

Matrix3 invert(const Matrix3& m);
Matrix3 multiply(const Matrix3& a, const Matrix3& b);
double smallest_singular_value(const Matrix3& m);

// Shrinks gaps wider than `reach` between coordinates along an open direction, if there are any
// that matter, and moves the lowest to 0: an atom that flew off costs no bins. Returns the extent.
double close_gaps(double* along, std::size_t count, double reach);

}  // namespace mdcg
