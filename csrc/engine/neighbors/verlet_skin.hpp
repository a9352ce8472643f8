// When a list of neighbours must be made again.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

enum class ListChange {
    none,    // the list is that of the last call
    shifts,  // other shifts: the cell has changed
    edges,   // another list
};

// Keeps what a list was made of: it holds all pairs closer than the cutoff while no pair outside it
// can have come closer, also where the cell changes little.
class VerletSkin {
public:
    // In Å; skin 0 makes a list at every move.
    VerletSkin(double cutoff, double skin);

    // Throws GeometryError. `cell`: [3][3], rows are vectors, only those of periodic directions are
    // read (null: none). After ListChange::edges every call asks for a list until one was kept.
    // Threads share the comparison with the positions of the list.
    ListChange needs_rebuild(std::int64_t num_atoms, const double* positions, const double* cell,
                             const bool* periodic, int threads = 1);
    // A list was made of the positions that were looked at.
    void keep(const double* positions);
    void reset() { valid_ = false; }

    double cutoff() const { return cutoff_; }
    double skin() const { return skin_; }
    // How far a list must see. Wider than the two, so that its own rounding at the border cannot
    // lose an edge.
    double reach() const { return cutoff_ + skin_ + 1e-6; }

    // Of the last call: the cell, open directions being unit vectors perpendicular to the others;
    // the distances of its planes.
    const std::array<bool, 3>& periodic() const { return periodic_; }
    const Matrix3& full() const { return full_; }
    const Matrix3& inverse() const { return inverse_; }
    Vector3 heights() const;

private:
    bool still_covers(const double* positions, const Matrix3& full, int threads) const;

    double cutoff_, skin_;
    bool valid_ = false;
    std::int64_t num_atoms_ = 0;
    std::array<bool, 3> periodic_{};
    Matrix3 full_{}, inverse_{};
    std::vector<double> built_at_;  // [num_atoms][3]
    Matrix3 built_in_{};
};

}  // namespace mdcg
