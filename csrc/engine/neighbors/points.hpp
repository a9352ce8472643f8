// Atoms and periodic images within a long cutoff, for operations with too many neighbours to keep
// an edge for each.
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

// Points are sorted by type and then by boxes of a grid, along x first, so that all points of a
// type near an atom form a few contiguous runs. They are sorted again in every evaluation, which
// takes a small part of the time of one pass over their pairs.
class Points {
public:
    // Arrays have this many items more than there are points, so that vectors may read beyond the
    // end.
    static constexpr std::int64_t PADDING = 16;

    // Takes all points within `reach` (Å) of a local node, and others in the box around them.
    // Throws GeometryError or EngineError.
    void update(const CellSystem& system, double reach);
    void update(const System& system, double reach);

    std::int64_t count() const { return static_cast<std::int64_t>(node_.size()); }
    const double* axis(std::size_t k) const { return axes_[k].data(); }  // [count + PADDING] Å
    const std::vector<std::int32_t>& node() const { return node_; }      // [count]
    // [num_local] the point that is the node itself, not an image
    const std::vector<std::int32_t>& own() const { return own_; }
    // Types that occur, and the first point of each box: [types][z][y][x], then the end.
    const std::vector<int>& types() const { return types_; }
    const std::vector<std::int64_t>& first() const { return first_; }
    const std::array<std::size_t, 3>& boxes() const { return boxes_; }
    const Vector3& origin() const { return origin_; }  // origin of the boxes, Å
    const Vector3& edge() const { return edge_; }      // lengths of a box, Å
    Vector3 position(std::int64_t local) const {
        const double* p = &local_[static_cast<std::size_t>(3 * local)];
        return {p[0], p[1], p[2]};
    }
    std::size_t bytes() const;

    // Calls body(type, begin, end) for runs of points that contain all points within `cutoff` of a
    // position, and others. The cutoff is at most the reach.
    template <typename Body>
    void visit(const Vector3& at, double cutoff, const Body& body) const {
        if (node_.empty()) return;
        const auto [y0, y1] = range(at, 1, cutoff);
        const auto [z0, z1] = range(at, 2, cutoff);
        for (std::int64_t z = z0; z <= z1; ++z)
            for (std::int64_t y = y0; y <= y1; ++y) {
                const double dy = gap(at, 1, y), dz = gap(at, 2, z);
                const double dx_squared = cutoff * cutoff - dy * dy - dz * dz;
                if (dx_squared < 0) continue;
                const auto [x0, x1] = range(at, 0, std::sqrt(dx_squared));
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
    struct UnsortedPoint {
        Vector3 at;
        std::int32_t node;
        bool own;  // whether it is a local node itself, not an image
    };
    void take_local(std::int64_t num_local, const double* positions);
    void add(const Vector3& at, std::int64_t node, bool own = false);
    void sort(const std::int32_t* types, double reach);
    std::array<std::int64_t, 2> range(const Vector3& at, std::size_t k, double cutoff) const;
    double gap(const Vector3& at, std::size_t k, std::int64_t box) const;
    std::int64_t box_of(double at, std::size_t k) const;

    std::vector<double> local_;  // [num_local][3], in the cell along periodic directions
    Vector3 low_{}, high_{};     // bounds of the local nodes, wider by the reach
    std::vector<UnsortedPoint> unsorted_;
    std::vector<std::int64_t> box_;  // [count] box of each unsorted point
    Vector3 origin_{}, edge_{};
    std::array<std::size_t, 3> boxes_{};  // number of boxes along x, y, z
    std::vector<int> types_;
    std::vector<std::int64_t> first_;          // [types * boxes + 1]
    std::array<std::vector<double>, 3> axes_;  // [count + PADDING]
    std::vector<std::int32_t> node_, own_;     // [count], [num_local]
};

}  // namespace mdcg
