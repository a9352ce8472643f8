// Potentials of charges and dipoles of open systems on CPUs: sums over pairs of points.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/ops/system/multipole_waves.hpp"

namespace mdcg {

// An atom is four points: at its position and `offset` along x, y and z from it. A dipole is a
// difference of point charges, and the slope of a potential a difference of potentials. Without
// dipoles and slopes only the first point counts.
struct PointPairs {
    double factor;  // eV Å / e^2, as GaussianCharges
    double offset;  // Å
    bool displaced;

    int points() const { return displaced ? 4 : 1; }
    // The charges of the points of an atom.
    Moment charges(const Moment& moment) const {
        Moment found{moment[0]};
        for (std::size_t d = 1; d < 4 && displaced; ++d) {
            found[d] = moment[d] / offset;
            found[0] -= found[d];
        }
        return found;
    }
    // The potential and its slope at an atom, from potentials at its points. Or the gradient of a
    // moment from gradients of charges.
    Moment slopes(const Moment& at_points) const {
        Moment found{at_points[0]};
        for (std::size_t d = 1; d < 4 && displaced; ++d)
            found[d] = (at_points[d] - at_points[0]) / offset;
        return found;
    }

    // Sums, for every other atom j, charges of its points times the interaction u of Gaussians with
    // the mean square width `width`^2, and its derivatives. Calls body(j, a, b, u, du) for the
    // points a of atom n and b of atom j, where du is the derivative by the position of n.
    template <typename Body>
    void each(const double* positions, Range nodes, std::int64_t n, double width,
              const Body& body) const {
        const double inverse = 0.5 / width, unit = factor / (2 * TWO_PI);
        const double peak = 2 * inverse / std::sqrt(TWO_PI / 2);
        for (std::int64_t j = nodes.begin; j < nodes.end; ++j)
            for (int a = 0; a < points() && j != n; ++a)
                for (int b = 0; b < points(); ++b) {
                    Vector3 v;
                    for (int d = 0; d < 3; ++d)
                        v[static_cast<std::size_t>(d)] = positions[3 * n + d] -
                                                         positions[3 * j + d] +
                                                         offset * ((a == d + 1) - (b == d + 1));
                    const double square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
                    // PolarMACE's own: distances are increased, so that none is zero
                    const double r = std::sqrt(square), away = r + 1e-6;
                    const double u = std::erf(inverse * r) / away;
                    const double slope =
                        r > 0 ? (peak * std::exp(-inverse * inverse * square) - u) / (away * r) : 0;
                    for (double& component : v) component *= unit * slope;
                    body(j, a, b, unit * u, v);
                }
    }
};

}  // namespace mdcg
