#include "engine/neighbors/geometry_check.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "core/text.hpp"

namespace mdcg {

namespace {

constexpr double MAX_COORDINATE = 1e8;  // Å; beyond it a double resolves no more than 1e-8 Å
constexpr double MAX_WRAP = 1 << 30;    // cells
constexpr std::int64_t MAX_CANDIDATES = 100 * MAX_NEIGHBORS;  // bins extend beyond the sphere
constexpr double MAX_SQUARE = 1e300;  // square of the length of a cell vector

double dot(const Vector3& a, const Vector3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

Vector3 cross(const Vector3& a, const Vector3& b) {
    return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

Vector3 unit(const Vector3& a) {
    const double length = std::sqrt(dot(a, a));
    return {a[0] / length, a[1] / length, a[2] / length};
}

std::string text_of(const double* values, int rows) {
    std::string text;
    for (int i = 0; i < 3 * rows; ++i)
        text += (i % 3 > 0 ? ", " : i > 0 ? "], [" : "[") + number_text(values[i]);
    return rows > 1 ? "[" + text + "]]" : text + "]";
}

}  // namespace

void check_positions(std::int64_t num_atoms, const double* positions) {
    std::int64_t bad = 0, first = -1;
    for (std::int64_t i = 0; i < num_atoms; ++i) {
        const double* p = positions + 3 * i;
        const bool usable = std::abs(p[0]) <= MAX_COORDINATE && std::abs(p[1]) <= MAX_COORDINATE &&
                            std::abs(p[2]) <= MAX_COORDINATE;  // false for nan
        if (!usable && ++bad == 1) first = i;
    }
    if (bad > 0)
        throw GeometryError(
            {std::to_string(bad) + " of " + std::to_string(num_atoms) +
                 " atoms have no usable position (the first is atom {} at " +
                 text_of(positions + 3 * first, 1) +
                 " Å); expected finite numbers below 1e+08 Å: did an earlier step blow up?",
             {first}});
}

void check_distance(std::int64_t num_atoms, const double* positions, const Matrix3& inverse,
                    const std::array<bool, 3>& periodic) {
    double largest = 0;
    std::int64_t farthest = 0;
    for (std::size_t k = 0; k < 3; ++k) {
        const double per_coordinate =
            std::abs(inverse[0][k]) + std::abs(inverse[1][k]) + std::abs(inverse[2][k]);
        // below MAX_COORDINATE this can only fail if planes are less than 0.2 Å apart
        if (!periodic[k] || MAX_COORDINATE * per_coordinate < MAX_WRAP) continue;
        for (std::int64_t i = 0; i < num_atoms; ++i) {
            const double* p = positions + 3 * i;
            const double cells =
                std::abs(p[0] * inverse[0][k] + p[1] * inverse[1][k] + p[2] * inverse[2][k]);
            if (cells > largest) {
                largest = cells;
                farthest = i;
            }
        }
    }
    if (!(largest < MAX_WRAP))
        throw GeometryError(
            {"atom {} is more than 2^30 cells away from the cell; wrap positions "
             "first",
             {farthest}});
}

void check_images(const Vector3& heights, const std::array<bool, 3>& periodic, double reach) {
    double images = 1, steps = 0;
    for (std::size_t k = 0; k < 3; ++k) {
        if (!periodic[k]) continue;
        images *= 2 * reach / heights[k] + 1;
        steps = std::max(steps, reach / heights[k]);
    }
    const bool few = steps <= static_cast<double>(MAX_STEPS);
    if (few && images <= static_cast<double>(MAX_NEIGHBORS)) return;
    std::string apart;
    for (std::size_t k = 0; k < 3; ++k)
        if (periodic[k]) apart += (apart.empty() ? "" : ", ") + number_text(heights[k], 3);
    const std::string most = few ? std::to_string(MAX_NEIGHBORS)
                                 : std::to_string(2 * MAX_STEPS) + " along a cell vector";
    throw GeometryError(
        "the planes of the cell are " + apart + " Å apart, so each atom would have " +
        (images < 1e6 ? std::to_string(static_cast<int>(images)) : number_text(images, 3)) +
        " periodic images within " + number_text(reach, 4) + " Å, expected at most " + most +
        ": is the cell in Å? If so, repeat it");
}

void refuse_neighbors(std::int64_t count, std::int64_t atom, double reach) {
    throw GeometryError({"atom {} has " + std::to_string(count) + " neighbours within " +
                             number_text(reach, 4) +
                             " Å, periodic images included, expected at most " +
                             std::to_string(MAX_NEIGHBORS) + ": are positions and cell in Å?",
                         {atom}});
}

void check_candidates(std::int64_t count, double reach) {
    if (count > MAX_CANDIDATES)
        throw GeometryError("the search for neighbours within " + number_text(reach, 4) +
                            " Å has to look at over " + std::to_string(MAX_CANDIDATES) +
                            " atoms and periodic images for each atom: are positions and cell in "
                            "Å? If so, choose cell vectors that are less skewed");
}

Matrix3 complete_cell(const double* cell, const std::array<bool, 3>& periodic) {
    Matrix3 full{};
    std::array<std::size_t, 3> closed{}, open{};
    std::size_t num_closed = 0, num_open = 0;
    for (std::size_t k = 0; k < 3; ++k) {
        if (periodic[k])
            closed[num_closed++] = k;
        else
            open[num_open++] = k;
    }
    std::string zero;
    for (std::size_t i = 0; i < num_closed; ++i) {
        const std::size_t k = closed[i];
        for (std::size_t c = 0; c < 3; ++c) full[k][c] = cell[3 * k + c];
        if (!(dot(full[k], full[k]) < MAX_SQUARE))
            throw GeometryError("the cell " + text_of(cell, 3) +
                                " has entries that are not finite numbers of at most 1e+150 Å");
        if (!(dot(full[k], full[k]) > 0)) zero += "abc"[k];
    }
    if (!zero.empty())
        throw GeometryError("the system is periodic along " + zero +
                            ", where its cell vector is zero; set a cell (atoms.cell) or switch "
                            "that direction off (atoms.pbc)");
    double independence = 1;  // area or volume that unit vectors along the cell vectors span
    if (num_closed == 1) {
        const Vector3 a = unit(full[closed[0]]);
        std::size_t least = 0;
        for (std::size_t c = 1; c < 3; ++c)
            if (std::abs(a[c]) < std::abs(a[least])) least = c;
        Vector3 axis{};
        axis[least] = 1;
        full[open[0]] = unit(cross(a, axis));
        full[open[1]] = cross(a, full[open[0]]);
    } else if (num_closed == 2) {
        const Vector3 normal = cross(unit(full[closed[0]]), unit(full[closed[1]]));
        independence = std::sqrt(dot(normal, normal));
        if (independence > 0) full[open[0]] = unit(normal);
    } else if (num_closed == 3) {
        const Vector3 a = unit(full[0]), b = unit(full[1]), c = unit(full[2]);
        independence = std::abs(dot(cross(a, b), c));
    } else {
        full = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
    }
    if (!(independence >= 1e-8)) {
        std::vector<double> rows;
        for (std::size_t i = 0; i < num_closed; ++i)
            rows.insert(rows.end(), full[closed[i]].begin(), full[closed[i]].end());
        throw GeometryError("the periodic cell vectors " +
                            text_of(rows.data(), static_cast<int>(num_closed)) +
                            " lie in one plane or on one line; expected linearly independent ones");
    }
    return full;
}

Matrix3 invert(const Matrix3& m) {
    // rows of the transposed inverse are the cross products of the other rows
    const Matrix3 crosses = {cross(m[1], m[2]), cross(m[2], m[0]), cross(m[0], m[1])};
    const double determinant = dot(m[0], crosses[0]);
    Matrix3 out{};
    for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t c = 0; c < 3; ++c) out[r][c] = crosses[c][r] / determinant;
    return out;
}

Matrix3 multiply(const Matrix3& a, const Matrix3& b) {
    Matrix3 out{};
    for (std::size_t r = 0; r < 3; ++r)
        for (std::size_t c = 0; c < 3; ++c)
            out[r][c] = a[r][0] * b[0][c] + a[r][1] * b[1][c] + a[r][2] * b[2][c];
    return out;
}

double smallest_singular_value(const Matrix3& m) {
    // 1 / |inverse|, where sqrt(|m|_1 |m|_inf) is at least the largest singular value
    const Matrix3 inverse = invert(m);
    double rows = 0, columns = 0;
    for (std::size_t r = 0; r < 3; ++r) {
        double row = 0, column = 0;
        for (std::size_t c = 0; c < 3; ++c) {
            row += std::abs(inverse[r][c]);
            column += std::abs(inverse[c][r]);
        }
        rows = std::max(rows, row);
        columns = std::max(columns, column);
    }
    return 1.0 / std::sqrt(rows * columns);
}

double close_gaps(double* along, std::size_t count, double reach) {
    if (count == 0) return 0;
    const auto [low, high] = std::minmax_element(along, along + count);
    const double lowest = *low, extent = *high - lowest;
    for (std::size_t i = 0; i < count; ++i) along[i] -= lowest;
    if (extent < reach * (32 + 2 * std::cbrt(static_cast<double>(count)))) return extent;
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return along[a] < along[b]; });
    const double widest = 1.01 * reach;
    double before = along[order[0]], removed = 0;
    for (const std::size_t i : order) {
        removed += std::max(along[i] - before - widest, 0.0);
        before = along[i];
        along[i] -= removed;
    }
    return along[order.back()];
}

}  // namespace mdcg
