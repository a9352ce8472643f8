#include "engine/neighbors/points.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// With smaller boxes fewer points lie outside the sphere; with larger boxes runs are longer.
constexpr double BOXES_PER_REACH = 3.0;
// Limit of the number of boxes: BOXES_PER_POINT * count + FEW_BOXES.
constexpr std::int64_t BOXES_PER_POINT = 4, FEW_BOXES = 1000;

// Finds the bounds of positions [count][3], wider by `reach`.
void find_bounds(const std::vector<double>& positions, double reach, Vector3& low, Vector3& high) {
    low.fill(std::numeric_limits<double>::infinity());
    high.fill(-std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < positions.size(); ++i) {
        low[i % 3] = std::min(low[i % 3], positions[i]);
        high[i % 3] = std::max(high[i % 3], positions[i]);
    }
    for (std::size_t k = 0; k < 3; ++k) low[k] -= reach, high[k] += reach;
}

}  // namespace

void Points::take_local(std::int64_t num_local, const double* positions) {
    local_.assign(positions, positions + 3 * num_local);
    unsorted_.clear();
}

void Points::add(const Vector3& at, std::int64_t node, bool own) {
    for (std::size_t k = 0; k < 3; ++k)
        if (at[k] < low_[k] || at[k] > high_[k]) return;
    unsorted_.push_back({at, narrow(node), own});
}

void Points::update(const CellSystem& system, double reach) {
    VerletSkin cell(reach, 0.0);
    cell.needs_rebuild(system.num_nodes, system.positions, system.cell, system.periodic);
    take_local(system.num_nodes, system.positions);
    const Matrix3 &full = cell.full(), &inverse = cell.inverse();
    const auto shift = [&](double* at, std::size_t k, double cells) {
        for (std::size_t d = 0; d < 3; ++d) at[d] += cells * full[k][d];
    };
    for (std::int64_t n = 0; n < system.num_nodes; ++n) {
        double* at = &local_[size(3 * n)];
        for (std::size_t k = 0; k < 3; ++k) {
            if (!cell.periodic()[k]) continue;
            const double along =
                at[0] * inverse[0][k] + at[1] * inverse[1][k] + at[2] * inverse[2][k];
            shift(at, k, -std::floor(along));
        }
    }
    find_bounds(local_, reach, low_, high_);
    Vector3 low = low_, high = high_;  // bounds of the nodes alone
    for (std::size_t k = 0; k < 3; ++k) low[k] += reach, high[k] -= reach;
    std::array<std::int64_t, 3> cells{};  // number of images on either side
    for (std::size_t k = 0; k < 3; ++k)
        if (cell.periodic()[k])
            cells[k] = static_cast<std::int64_t>(reach / cell.heights()[k] + 1.0);
    for (std::int64_t a = -cells[0]; a <= cells[0]; ++a)
        for (std::int64_t b = -cells[1]; b <= cells[1]; ++b)
            for (std::int64_t c = -cells[2]; c <= cells[2]; ++c) {
                double by[3] = {};
                shift(by, 0, static_cast<double>(a));
                shift(by, 1, static_cast<double>(b));
                shift(by, 2, static_cast<double>(c));
                bool near = true;
                for (std::size_t k = 0; k < 3; ++k)
                    near = near && low[k] + by[k] <= high_[k] && high[k] + by[k] >= low_[k];
                if (!near) continue;
                for (std::int64_t n = 0; n < system.num_nodes; ++n) {
                    const double* at = &local_[size(3 * n)];
                    add({at[0] + by[0], at[1] + by[1], at[2] + by[2]}, n,
                        a == 0 && b == 0 && c == 0);
                }
            }
    sort(system.types, reach);
}

void Points::update(const System& system, double reach) {
    check_positions(system.num_nodes, system.positions);
    check_range(system.copy_node, system.num_copies, system.num_nodes, "copy_node");
    check_range(system.copy_image, system.num_copies, system.num_images, "copy_image");
    take_local(system.num_local, system.positions);
    find_bounds(local_, reach, low_, high_);
    const auto at = [&](std::int64_t n) {
        const double* p = system.positions + 3 * n;
        return Vector3{p[0], p[1], p[2]};
    };
    for (std::int64_t n = 0; n < system.num_nodes; ++n) add(at(n), n, n < system.num_local);
    for (std::int64_t c = 0; c < system.num_copies; ++c) {
        const std::int64_t node = system.copy_node[c];
        Vector3 image = at(node);
        const double* shift =
            system.image_shifts + 3 * static_cast<std::int64_t>(system.copy_image[c]);
        for (std::size_t k = 0; k < 3; ++k) image[k] -= shift[k];
        add(image, node);
    }
    sort(system.types, reach);
}

// A counting sort by type and box.
void Points::sort(const std::int32_t* types, double reach) {
    const auto count = unsorted_.size();
    node_.resize(count);
    for (std::vector<double>& axis : axes_) axis.assign(count + size(PADDING), 0.0);
    own_.assign(local_.size() / 3, 0);
    types_.clear();
    first_.assign(1, 0);
    boxes_.fill(1);
    edge_.fill(reach);
    if (count == 0) return;
    std::vector<int> slot;
    for (const UnsortedPoint& point : unsorted_) {
        const auto type = size(types[point.node]);
        if (type >= slot.size()) slot.resize(type + 1, -1);
        slot[type] = 0;
    }
    for (std::size_t type = 0; type < slot.size(); ++type)
        if (slot[type] == 0) {
            slot[type] = static_cast<int>(types_.size());
            types_.push_back(static_cast<int>(type));
        }
    origin_ = low_;
    const double limit =
        static_cast<double>(BOXES_PER_POINT * static_cast<std::int64_t>(count) + FEW_BOXES);
    double length = reach / BOXES_PER_REACH, boxes = 0;
    for (;; length *= 1.5) {
        boxes = 1;
        for (std::size_t k = 0; k < 3; ++k) boxes *= std::floor((high_[k] - low_[k]) / length) + 1;
        if (boxes <= limit) break;
    }
    for (std::size_t k = 0; k < 3; ++k) {
        edge_[k] = length;
        boxes_[k] = static_cast<std::size_t>((high_[k] - low_[k]) / length) + 1;
    }
    first_.assign(types_.size() * boxes_[0] * boxes_[1] * boxes_[2] + 1, 0);
    box_.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
        const Vector3& at = unsorted_[i].at;
        std::size_t box = size(slot[size(types[unsorted_[i].node])]);
        for (std::size_t k = 3; k-- > 0;) box = box * boxes_[k] + size(box_of(at[k], k));
        box_[i] = static_cast<std::int64_t>(box);
        ++first_[box + 1];
    }
    for (std::size_t b = 1; b < first_.size(); ++b) first_[b] += first_[b - 1];
    for (std::size_t i = 0; i < count; ++i) {  // afterwards first_[b] is the end of box b
        const UnsortedPoint& point = unsorted_[i];
        const auto to = size(first_[size(box_[i])]++);
        node_[to] = point.node;
        if (point.own) own_[size(point.node)] = narrow(static_cast<std::int64_t>(to));
        for (std::size_t k = 0; k < 3; ++k) axes_[k][to] = point.at[k];
    }
    for (std::size_t b = first_.size(); b-- > 1;) first_[b] = first_[b - 1];
    first_[0] = 0;
}

std::int64_t Points::box_of(double at, std::size_t k) const {
    const double box = std::floor((at - origin_[k]) / edge_[k]);
    return static_cast<std::int64_t>(std::clamp(box, 0.0, static_cast<double>(boxes_[k] - 1)));
}

std::array<std::int64_t, 2> Points::range(const Vector3& at, std::size_t k, double cutoff) const {
    return {box_of(at[k] - cutoff, k), box_of(at[k] + cutoff, k)};
}

// The distance between a position and a box along one direction, 0 inside.
double Points::gap(const Vector3& at, std::size_t k, std::int64_t box) const {
    const double low = origin_[k] + static_cast<double>(box) * edge_[k];
    return std::max({0.0, low - at[k], at[k] - low - edge_[k]});
}

std::size_t Points::bytes() const {
    return (local_.capacity() + axes_[0].capacity() * 3) * sizeof(double) +
           unsorted_.capacity() * sizeof(UnsortedPoint) +
           (node_.capacity() + own_.capacity()) * sizeof(std::int32_t) +
           (first_.capacity() + box_.capacity()) * sizeof(std::int64_t);
}

}  // namespace mdcg
