// Atoms and periodic images within a long cutoff, for operations that see too many neighbours to
// keep an edge for each.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/graph.hpp"
#include "engine/neighbors/geometry_check.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

// Points are sorted by type and by boxes, of which those along x follow each other: all points of a
// type near an atom are a few runs. They are found anew in every evaluation, which takes a small
// part of one pass over pairs of them.
class Points {
public:
    // Arrays are longer than the points by this, so that vectors may read beyond the end.
    static constexpr std::int64_t PADDING = 16;

    // Of all points within `reach` (Å) of a local node. Throws GeometryError or EngineError.
    void update(const CellSystem& system, double reach);
    void update(const System& system, double reach);

    std::int64_t count() const { return static_cast<std::int64_t>(node_.size()); }
    const double* axis(std::size_t k) const { return axes_[k].data(); }  // [count + PADDING] Å
    const std::vector<std::int32_t>& node() const { return node_; }      // [count]
    const std::vector<std::int32_t>& own() const { return own_; }  // [num_local] their own points
    // Boxes: types that occur, and the first point [types][z][y][x + 1] of each box.
    const std::vector<int>& types() const { return types_; }
    const std::vector<std::int64_t>& first() const { return first_; }
    const std::array<std::size_t, 3>& boxes() const { return boxes_; }
    const Vector3& origin() const { return origin_; }
    const Vector3& edge() const { return edge_; }
    Vector3 position(std::int64_t local) const {
        const double* p = &local_[static_cast<std::size_t>(3 * local)];
        return {p[0], p[1], p[2]};
    }
    std::size_t bytes() const;

    // Calls body(type, begin, end) for runs of points that hold all within `cutoff` of a place, and
    // others; cutoff is at most the reach.
    template <typename Body>
    void visit(const Vector3& at, double cutoff, const Body& body) const {
        if (node_.empty()) return;
        const auto [y0, y1] = range(at, 1, cutoff);
        const auto [z0, z1] = range(at, 2, cutoff);
        for (std::int64_t z = z0; z <= z1; ++z)
            for (std::int64_t y = y0; y <= y1; ++y) {
                const double dy = gap(at, 1, y), dz = gap(at, 2, z);
                const double rest = cutoff * cutoff - dy * dy - dz * dz;
                if (rest < 0) continue;
                const auto [x0, x1] = range(at, 0, std::sqrt(rest));
                for (std::size_t slot = 0; slot < types_.size(); ++slot) {
                    const std::size_t row =
                        ((slot * boxes_[2] + static_cast<std::size_t>(z)) * boxes_[1] +
                         static_cast<std::size_t>(y)) *
                        boxes_[0];
                    const std::int64_t begin = first_[row + static_cast<std::size_t>(x0)];
                    const std::int64_t end = first_[row + static_cast<std::size_t>(x1) + 1];
                    if (begin < end) body(types_[slot], begin, end);
                }
            }
    }

private:
    struct Found {  // before sorting
        Vector3 at;
        std::int32_t node;
        bool own;  // the node itself, and local
    };
    void take_local(std::int64_t num_local, const double* positions);
    void add(const Vector3& at, std::int64_t node, bool own = false);
    void sort(const std::int32_t* types, double reach);
    std::array<std::int64_t, 2> range(const Vector3& at, std::size_t k, double cutoff) const;
    double gap(const Vector3& at, std::size_t k, std::int64_t box) const;
    std::int64_t box_of(double at, std::size_t k) const;

    std::vector<double> local_;  // [num_local][3], in the cell along periodic directions
    Vector3 low_{}, high_{};     // of the local nodes, wider by the reach
    std::vector<Found> found_;
    Vector3 origin_{}, edge_{};  // of the boxes
    std::array<std::size_t, 3> boxes_{};
    std::vector<int> types_;           // that occur
    std::vector<std::int64_t> first_;  // [types][z][y][x + 1] first point of each box
    std::vector<std::int64_t> box_;    // [count] of points before sorting
    std::array<std::vector<double>, 3> axes_;
    std::vector<std::int32_t> node_, own_;
};

}  // namespace mdcg
