// Checks of the cells and positions that neighbour lists are made of, and 3x3 matrices.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>

#include "engine/error.hpp"

namespace mdcg {

// Thrown for positions or a cell of which no neighbour list can be made.
struct GeometryError : std::invalid_argument {
    explicit GeometryError(Sentence sentence)
        : std::invalid_argument(sentence.text()), sentence(std::move(sentence)) {}
    Sentence sentence;
};

using Vector3 = std::array<double, 3>;
using Matrix3 = std::array<Vector3, 3>;

// Most neighbours of one atom, periodic images included. More would take minutes and all memory,
// and result from a mistake, such as a wrong unit.
constexpr std::int64_t MAX_NEIGHBORS = 50000;
// Most cells between the two atoms of an edge, along one cell vector.
constexpr std::int64_t MAX_STEPS = 510;

// These throw GeometryError.
void check_positions(std::int64_t num_atoms, const double* positions);
void check_distance(std::int64_t num_atoms, const double* positions, const Matrix3& inverse,
                    const std::array<bool, 3>& periodic);
// `heights`: [3] distances between the planes of the cell, Å; `reach`: longest edge of a list, Å.
void check_images(const Vector3& heights, const std::array<bool, 3>& periodic, double reach);
[[noreturn]] void refuse_neighbors(std::int64_t count, std::int64_t atom, double reach);
inline void check_neighbors(std::int64_t count, std::int64_t atom, double reach) {
    if (count > MAX_NEIGHBORS) refuse_neighbors(count, atom, reach);
}
// `count`: atoms and images that are compared with the atoms of one bin.
void check_candidates(std::int64_t count, double reach);

// Returns the cell vectors of periodic directions, and for open directions unit vectors
// perpendicular to these.
Matrix3 complete_cell(const double* cell, const std::array<bool, 3>& periodic);

Matrix3 invert(const Matrix3& m);
Matrix3 multiply(const Matrix3& a, const Matrix3& b);
// A lower bound of the smallest singular value.
double smallest_singular_value(const Matrix3& m);

// Moves the lowest of the coordinates along an open direction to 0 and, if they extend far, shrinks
// gaps wider than `reach`, so that an atom that flew off costs no bins. Returns the extent.
double close_gaps(double* along, std::size_t count, double reach);

}  // namespace mdcg
