// The grid that neighbours are searched in, the same on CPUs and devices.
#pragma once

#include <array>
#include <cstdint>

#include "engine/neighbors/geometry_check.hpp"

namespace mdcg {

struct Bins {
    std::array<std::int64_t, 3> count{};    // bins along each direction
    std::array<std::int64_t, 3> stencil{};  // bins on either side that hold neighbours
    double shrunk = 1;  // how many times more bins half the reach wide there would have been
};

// Bins of half the reach, of which the grid has at most `limit`: where these are more, they become
// longer along the longest direction first, so that thin systems keep theirs. `extent`: how far
// the system goes, Å. `tile`: counts are rounded up to tiles of so many where memory is counted.
Bins choose_bins(const Vector3& extent, const std::array<bool, 3>& periodic, double reach,
                 std::int64_t limit, std::int64_t tile = 1);

}  // namespace mdcg
