// The grid of bins in which neighbours are searched, the same on CPUs and devices.
#pragma once

#include <array>
#include <cstdint>

#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

struct Bins {
    std::array<std::int64_t, 3> count{};    // bins along each direction
    std::array<std::int64_t, 3> stencil{};  // bins on either side that hold neighbours
    double shrunk = 1;  // number of bins that are half the reach wide, divided by the number chosen
};

// Bins are half the reach wide. If the grid would have more than `limit` bins, bins become wider
// along the longest directions, so that thin systems keep narrow bins. `extent`: lengths of the
// system, Å. `tile`: memory is needed for whole tiles of tile^3 bins, so these are counted.
Bins choose_bins(const Vector3& extent, const std::array<bool, 3>& periodic, double reach,
                 std::int64_t limit, std::int64_t tile = 1);

}  // namespace mdcg
