// Interactions of Gaussian charges in open systems, written once for hosts and devices.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// The interaction erf(inverse r) / (r + added) of two charges, where 1 / inverse^2 is twice the sum
// of the squares of their widths.
struct GaussianPair {
    double inverse;  // 1/Å
    double added;    // Å

    // `slope` is the derivative by r, divided by r, and 0 where r is 0.
    MDCG_HD double value(double square, double& slope) const {
        const double peak = 1.128379167095512574 * inverse;
        const double r = square_root(square), away = r + added;
        const double u = error_function(inverse * r) / away;
        slope = r > 0 ? (peak * exponential(-inverse * inverse * square) - u) / (away * r) : 0.0;
        return u;
    }
};

// An atom is four points: at its position and `offset` along x, y and z from it. A dipole is a
// difference of point charges, and the slope of a potential a difference of potentials. Without
// dipoles and slopes only the first point counts.
struct PointPairs {
    double unit;    // eV Å / e^2
    double offset;  // Å
    int points;     // 1 or 4

    // PolarMACE's own: distances are increased, so that none is zero.
    MDCG_HD static GaussianPair gaussians(double sum_of_squares) {
        return {1 / square_root(2 * sum_of_squares), 1e-6};
    }
    // The charges of the points of an atom.
    template <typename Moment, typename Charges>
    MDCG_HD void charges(const Moment& moment, Charges& found) const {
        found[0] = moment[0];
        for (int d = 1; d < 4; ++d) {
            found[d] = d < points ? moment[d] / offset : 0.0;
            found[0] -= found[d];
        }
    }
    // The potential and its slope at an atom, from potentials at its points. Or the gradient of a
    // moment from gradients of charges.
    template <typename Sums, typename Moment>
    MDCG_HD void slopes(const Sums& at_points, Moment& found) const {
        found[0] = at_points[0];
        for (int d = 1; d < 4; ++d)
            found[d] = d < points ? (at_points[d] - at_points[0]) / offset : 0.0;
    }
    // The interaction of point p of an atom and point q of another one, and its derivatives by the
    // position of the first.
    template <typename Vector>
    MDCG_HD double pair(const GaussianPair& gaussians, const double* at, const double* other, int p,
                        int q, Vector& slope) const {
        double square = 0, by_r;
        for (int d = 0; d < 3; ++d) {
            slope[d] = at[d] - other[d] + offset * ((p == d + 1) - (q == d + 1));
            square += slope[d] * slope[d];
        }
        const double u = gaussians.value(square, by_r);
        for (int d = 0; d < 3; ++d) slope[d] *= unit * by_r;
        return unit * u;
    }
};

}  // namespace mdcg
