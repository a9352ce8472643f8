// Tells when a list of neighbours must be made again.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

enum class ListChange {
    none,    // the list and its shifts are still valid
    shifts,  // the cell has changed, and with it the shifts of the edges
    edges,   // a new list is needed
};

// Remembers the positions and the cell that a list was made of. The list stays valid while no pair
// that it lacks can have come closer than the cutoff, also if the cell changes a little.
class VerletSkin {
public:
    // Lengths in Å. With skin 0 a list is made whenever an atom moves. A list covers
    // every cutoff from `shortest` (negative: from `cutoff`) to `cutoff`. With a `shortest`, the
    // number of periodic images within reach is not checked.
    VerletSkin(double cutoff, double skin, double shortest = -1);

    // Throws GeometryError. `positions`: [num_atoms][3] Å; `cell`: [3][3] Å, rows are vectors, only
    // those of periodic directions are read (null: an open system); `periodic`: [3]. Returns
    // ListChange::edges until keep() is called. `threads` share the comparison of positions.
    ListChange needs_rebuild(std::int64_t num_atoms, const double* positions, const double* cell,
                             const bool* periodic, int threads = 1);
    // To be called after a list was made of the positions of the last call of needs_rebuild.
    void keep(const double* positions);
    void reset() { valid_ = false; }

    double cutoff() const { return cutoff_; }
    double skin() const { return skin_; }
    // The longest edge of a list, with a margin so that rounding cannot lose an edge.
    double reach() const { return cutoff_ + skin_ + 1e-6; }

    // The cell of the last call. full(): rows are the cell vectors, and unit vectors perpendicular
    // to these for open directions. heights(): distances between its planes, Å.
    const std::array<bool, 3>& periodic() const { return periodic_; }
    const Matrix3& full() const { return full_; }
    const Matrix3& inverse() const { return inverse_; }
    Vector3 heights() const;

private:
    bool still_covers(const double* positions, const Matrix3& full, int threads) const;

    double cutoff_, skin_, shortest_;
    bool valid_ = false;
    std::int64_t num_atoms_ = 0;
    std::array<bool, 3> periodic_{};
    Matrix3 full_{}, inverse_{};
    std::vector<double> built_at_;  // [num_atoms][3]
    Matrix3 built_in_{};
};

}  // namespace mdcg
