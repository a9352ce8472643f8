#include "engine/neighbors/bins.hpp"

#include <algorithm>
#include <cmath>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// With smaller bins fewer candidates lie outside the sphere, but there are more bins to visit.
constexpr double BINS_PER_REACH = 2.0;

}  // namespace

Bins choose_bins(const Vector3& extent, const std::array<bool, 3>& periodic, double reach,
                 std::int64_t limit, std::int64_t tile) {
    Bins bins;
    std::array<std::int64_t, 3> wanted{};
    std::array<std::size_t, 3> order = {0, 1, 2};
    for (const std::size_t k : order)
        wanted[k] = static_cast<std::int64_t>(
            std::clamp(extent[k] * BINS_PER_REACH / reach, 1.0, static_cast<double>(limit)));
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return wanted[a] != wanted[b] ? wanted[a] < wanted[b] : a < b;
    });
    // From the shortest direction on, each takes at most an equal part of the tiles that are left:
    // their cube root, square root, and all. The integer division cannot exceed the limit.
    std::int64_t tiles = limit / (tile * tile * tile);
    for (std::size_t taken = 0; taken < 3; ++taken) {
        const std::size_t k = order[taken];
        const auto left = static_cast<double>(tiles);
        const double part = taken == 0 ? std::cbrt(left) : taken == 1 ? std::sqrt(left) : left;
        const std::int64_t own = std::clamp<std::int64_t>(
            ceil_div(wanted[k], tile), 1,
            std::clamp<std::int64_t>(static_cast<std::int64_t>(part), 1, tiles));
        tiles /= own;
        bins.count[k] = std::min(wanted[k], own * tile);
        bins.shrunk *= static_cast<double>(wanted[k]) / static_cast<double>(bins.count[k]);
        const double size = extent[k] / static_cast<double>(bins.count[k]);
        const double steps = size > 0 ? std::min(std::ceil(reach / size), 1e9) : 1.0;
        bins.stencil[k] = static_cast<std::int64_t>(steps);
        if (!periodic[k]) bins.stencil[k] = std::min(bins.stencil[k], bins.count[k] - 1);
    }
    return bins;
}

}  // namespace mdcg
