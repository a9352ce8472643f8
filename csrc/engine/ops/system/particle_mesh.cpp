#include "engine/ops/system/particle_mesh.hpp"

#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "kernels/particle_mesh.hpp"

namespace mdcg {

namespace {

int rounded_up(int n) { return narrow(ceil_div(n, MESH_STEP)) * MESH_STEP; }

// Twice as many points as waves; windows are not longer than the mesh.
int points_for(int bound) { return std::max(rounded_up(2 * (2 * bound + 1)), 2 * MESH_STEP); }

}  // namespace

bool ParticleMesh::is_worthwhile(const Waves& waves, std::int64_t least_pairs) {
    // Points for each pair; rectangular cells have 61 or some more. The matrix of a direction has
    // half the square of its points.
    const double most = 300 * static_cast<double>(waves.num_pairs());
    double all = 1;
    for (std::size_t d = 0; d < 3; ++d) {
        const double points = points_for(waves.bound(d));
        if (points * points > most) return false;
        all *= points;
    }
    return waves.num_pairs() >= least_pairs && all <= most;
}

// With z = sin(t) the integrand and its derivatives vanish at both ends, so that sums of equal
// steps are exact.
double ParticleMesh::window_transform(int n, int points) const {
    constexpr int STEPS = 1000;
    const double frequency = 0.5 * TWO_PI * n * window_points_ / points;
    double sum = 0;
    for (int i = 0; i < STEPS; ++i) {
        const double t = TWO_PI / 4 * (2 * i + 1 - STEPS) / STEPS, z = std::sin(t);
        sum += window(WINDOW_EXPONENT * window_points_, z).value * std::cos(t) *
               std::cos(frequency * z);
    }
    return sum * TWO_PI / 2 / STEPS * window_points_ / 2;
}

bool ParticleMesh::update(const Waves& waves) {
    bool changed = false;
    for (std::size_t d = 0; d < 3; ++d) {
        Size& size = sizes_[d];
        if (size.bound == waves.bound(d)) continue;
        changed = true;
        const int bound = waves.bound(d);
        const int points = points_for(bound), modes = rounded_up(2 * (bound + 1));
        const int columns = points + (d == 2 ? repeated_ : 0);
        size = {bound, points, modes, std::vector<double>(std::size_t(points) * modes),
                std::vector<double>(std::size_t(modes) * columns)};
        for (int n = 0; n <= bound; ++n) {
            const double scale = 1 / window_transform(n, points);
            for (int j = 0; j < columns; ++j) {
                // whole turns are left out before the division
                const double angle =
                    TWO_PI * static_cast<double>(std::int64_t(n) * j % points) / points;
                const double numbers[2] = {scale * std::cos(angle), scale * std::sin(angle)};
                for (int part = 0; part < 2; ++part) {
                    const int mode = 2 * n + part;
                    if (j < points) size.of_charges[std::size_t(j) * modes + mode] = numbers[part];
                    size.of_factors[std::size_t(mode) * columns + j] = numbers[part];
                }
            }
        }
    }
    return changed;
}

std::int64_t ParticleMesh::num_points() const {
    return std::int64_t(points(0)) * points(1) * points(2);
}

std::int64_t ParticleMesh::most_items() const {
    const auto items = [](int a, int b, int c) { return std::int64_t(a) * b * c; };
    return std::max({items(points(1), points(2), modes(0)), items(points(2), modes(0), modes(1)),
                     items(modes(0), modes(1), modes(2)), items(modes(1), modes(2), potentials(0)),
                     items(modes(2), potentials(0), potentials(1))});
}

}  // namespace mdcg
