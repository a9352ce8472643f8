#include "engine/neighbors/estimate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "engine/neighbors/bins.hpp"
#include "engine/neighbors/verlet_skin.hpp"

namespace mdcg {

namespace {

// Sums of the atoms in the stencil around each bin: sums along one direction after the other.
std::vector<std::int64_t> stencil_sums(const std::vector<std::int32_t>& count, const Bins& bins,
                                       const std::array<bool, 3>& periodic) {
    std::vector<std::int64_t> sums(count.begin(), count.end()), line;
    const auto all = static_cast<std::int64_t>(count.size());
    std::int64_t stride = all;
    for (std::size_t k = 0; k < 3; ++k) {
        const std::int64_t length = bins.count[k], reach = bins.stencil[k];
        stride /= length;
        line.assign(size(length + 2 * reach), 0);
        const auto sum_line = [&](std::int64_t first) {
            for (std::int64_t i = -reach; i < length + reach; ++i) {
                if (!periodic[k] && (i < 0 || i >= length)) continue;
                const std::int64_t at = (i % length + length) % length;
                line[size(i + reach)] = sums[size(first + at * stride)];
            }
            std::int64_t sum =
                std::accumulate(line.begin(), line.begin() + 2 * reach, std::int64_t(0));
            for (std::int64_t i = 0; i < length; ++i) {
                sum += line[size(i + 2 * reach)];
                sums[size(first + i * stride)] = sum;
                sum -= line[size(i)];
            }
        };
        for (std::int64_t block = 0; block < all; block += stride * length) {
            poll_interrupt();
            for (std::int64_t first = block; first < block + stride; ++first) sum_line(first);
        }
    }
    return sums;
}

}  // namespace

double estimate_neighbors(const CellSystem& system, double reach) {
    VerletSkin watch(reach, 0);
    const std::int64_t atoms = system.num_nodes;
    watch.needs_rebuild(atoms, system.positions, system.cell, system.periodic);
    if (atoms == 0) return 0;
    const std::array<bool, 3>& periodic = watch.periodic();
    const Vector3 heights = watch.heights();
    Vector3 extent = heights;
    std::vector<double> along(size(3 * atoms));  // Å along open directions, fractions along others
    for (std::size_t k = 0; k < 3; ++k) {
        double* const own = along.data() + static_cast<std::int64_t>(k) * atoms;
        for (std::int64_t i = 0; i < atoms; ++i) {
            const double* p = system.positions + 3 * i;
            const Matrix3& inverse = watch.inverse();
            own[i] = p[0] * inverse[0][k] + p[1] * inverse[1][k] + p[2] * inverse[2][k];
            if (periodic[k]) own[i] -= std::floor(own[i]);
        }
        if (!periodic[k]) extent[k] = close_gaps(own, size(atoms), reach);
    }
    const Bins bins = choose_bins(extent, periodic, reach, 8 * atoms + 64);
    const auto& [nx, ny, nz] = bins.count;
    std::vector<std::int32_t> count(size(nx * ny * nz), 0);
    for (std::int64_t i = 0; i < atoms; ++i) {
        std::array<std::int64_t, 3> at{};
        for (std::size_t k = 0; k < 3; ++k) {
            const double scale = periodic[k] ? 1.0 : extent[k] > 0 ? 1.0 / extent[k] : 0.0;
            const double part = along[k * size(atoms) + size(i)] * scale;
            at[k] = std::clamp<std::int64_t>(
                static_cast<std::int64_t>(part * static_cast<double>(bins.count[k])), 0,
                bins.count[k] - 1);
        }
        ++count[size((at[0] * ny + at[1]) * nz + at[2])];
    }
    // The part of the bins of the stencil that a sphere fills. Wide bins of a dilute system say
    // little about neighbours, so all atoms in the stencil count.
    double volume = 1;
    for (std::size_t k = 0; k < 3; ++k) {
        const std::int64_t width = 2 * bins.stencil[k] + 1;
        volume *= std::max(extent[k] / static_cast<double>(bins.count[k]), 1e-3) *
                  static_cast<double>(periodic[k] ? width : std::min(width, bins.count[k]));
    }
    // A skewed cell has bins of a larger volume than the product of its heights.
    double skew = 1;
    for (std::size_t k = 0; k < 3; ++k) skew *= heights[k];
    const Matrix3& f = watch.full();
    const double cell_volume = std::abs(f[0][0] * (f[1][1] * f[2][2] - f[1][2] * f[2][1]) -
                                        f[0][1] * (f[1][0] * f[2][2] - f[1][2] * f[2][0]) +
                                        f[0][2] * (f[1][0] * f[2][1] - f[1][1] * f[2][0]));
    volume *= cell_volume / skew;
    const double sphere = 4.0 / 3.0 * 3.14159265358979 * reach * reach * reach;
    const double filled = bins.shrunk > 1 ? 1.0 : std::min(sphere / volume, 1.0);
    const std::vector<std::int64_t> around = stencil_sums(count, bins, periodic);
    double pairs = 0;
    for (std::size_t b = 0; b < count.size(); ++b)
        pairs += static_cast<double>(count[b]) * static_cast<double>(around[b]);
    return filled * pairs / static_cast<double>(atoms);
}

}  // namespace mdcg
