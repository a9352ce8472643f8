// Fits of a radial network, from which the tables of CPUs and GPUs are made. For one pair of types,
// the hidden units (the inputs of the last layer) become piecewise polynomials of the square root
// of the length: B-splines for CPUs, independent polynomials in each interval for GPUs. The last
// layer is linear, so that it turns the rows of a fit into rows of weights.
//
// Where the second derivative of the network jumps, at the start of an xplor cutoff, an interval
// begins, and the splines on both sides are fitted apart.
//
// A fit has as few intervals as keep it within a limit, which is measured against the network at
// points between the nodes of the fit.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "engine/edges/radial.hpp"

namespace mdcg {

// Limits of the errors of weights, and of their derivatives by the length. `value` and `slope` are
// relative to the largest of all weights. `own_value` and `own_slope` are relative to the size of
// each weight that decides its rounding in float32: the sum of the absolute values of its products.
// For derivatives, this size includes the rounding of positions.
struct TableLimit {
    static constexpr double kNone = std::numeric_limits<double>::infinity();
    double value = kNone, slope = kNone;
    double own_value = kNone, own_slope = kNone;
    int min_intervals = 16;
    double accepted = 1;  // largest error / limit that is accepted with the most intervals

    bool has_slopes() const { return slope < kNone || own_slope < kNone; }
};

// Double precision. The limit of derivatives is wider, because their rounding grows with the number
// of intervals.
constexpr TableLimit kDoubleTolerance{1e-13, 1e-11, TableLimit::kNone, TableLimit::kNone, 32};
// Double precision without derivatives.
constexpr TableLimit kDoubleValueTolerance{1e-13, TableLimit::kNone, TableLimit::kNone,
                                           TableLimit::kNone, 32};
// Single precision: two roundings of a weight, one of a derivative.
constexpr TableLimit kSingleTolerance{TableLimit::kNone, TableLimit::kNone, 1.2e-7, 6e-8, 32};
// Single precision on CPUs, where more intervals cost little time.
constexpr TableLimit kSplineTolerance{TableLimit::kNone, TableLimit::kNone, 6e-8, 1.5e-8, 32};
// Single precision on GPUs, for packages that ask for the exact network.
constexpr TableLimit kTightTolerance{TableLimit::kNone, TableLimit::kNone, 1.2e-7, 2e-8, 32, 3};
// Single precision without derivatives: well below the rounding of values.
constexpr TableLimit kValueTolerance{1e-8, TableLimit::kNone, 1.2e-7, TableLimit::kNone, 16};

// Splines reach from a 64th of the cutoff to the cutoff, polynomials from 0 to the cutoff.
enum class FitKind { kSpline, kPolynomials };

// Equal intervals in the square root of the length. The last one ends at the cutoff.
struct TableGrid {
    double first = 0;  // begin of the first interval, which may be below 0
    double step = 1, inverse_step = 1;
    int intervals = 0;  // 0: no number is within the limit
    int kink = 0;       // interval that begins at the kink; `intervals`: there is none
};

class RadialFit {
public:
    // `degree`: odd. `singles`: how many of the highest coefficients of polynomials are rounded to
    // float32.
    RadialFit(const RadialSpec& spec, FitKind kind, int degree, TableLimit limit, int singles = 0);

    // The coarsest grid that is within the limit for a pair of types.
    TableGrid choose(int receiver, int sender) const;
    // [num_rows(grid)][units], in double. Row i + k of a spline is coefficient k of interval i, and
    // row i + degree + k from the kink on. Row i * (degree + 1) + k of polynomials is the
    // coefficient of z^k in interval i, where z goes from -1 to 1.
    std::vector<double> rows(int receiver, int sender, const TableGrid& grid) const;
    int num_rows(const TableGrid& grid) const {
        if (kind_ == FitKind::kPolynomials) return grid.intervals * (degree_ + 1);
        return grid.intervals + degree_ * (grid.kink < grid.intervals ? 2 : 1);
    }
    int degree() const { return degree_; }

    // Columns of the last layer for `count` outputs from `begin` on, [units][count], to multiply
    // rows with.
    PackedMatrix<double> last_layer(int begin, int count) const;
    int units() const { return network_.units(); }

private:
    struct Units {
        std::vector<double> values, slopes;  // [lengths][units]
    };
    // Sizes that errors of values and of derivatives are relative to, for one of two zones: all
    // lengths, or those below core().
    struct Sizes {
        std::vector<double> own[2];  // [outputs]
        double largest[2] = {0, 0};
    };
    Units evaluate(const std::vector<double>& lengths, int receiver, int sender) const;
    // A grid of at least so many intervals.
    TableGrid grid(int receiver, int sender, int intervals) const;
    // Places between knots at either end of a spline, where its values are needed.
    int places_between() const { return (degree_ - 3) / 2; }
    // The spline of the intervals from `begin` to `end`.
    std::vector<double> fit_spline(int receiver, int sender, const TableGrid& grid, int begin,
                                   int end) const;
    // Fits the intervals `which`, one after the other.
    std::vector<double> fit_polynomials(int receiver, int sender, const TableGrid& grid,
                                        const std::vector<int>& which) const;
    // The largest ratio of an error to its limit.
    double error(int receiver, int sender, const TableGrid& grid, const Sizes (&sizes)[2]) const;
    void measure(int receiver, int sender, Sizes (&sizes)[2]) const;
    // Lengths below this are rare: errors may be ten times as large there.
    double core(int receiver, int sender) const;

    RadialSpec spec_;
    Radial<double> network_;
    std::vector<double> last_;       // [units][outputs]
    std::vector<int> checked_;       // outputs that are compared
    PackedMatrix<double> weights_;   // columns of these outputs in the last layer
    PackedMatrix<double> absolute_;  // absolute values of weights_
    FitKind kind_;
    int degree_, singles_, max_intervals_, threads_;
    TableLimit limit_;
};

}  // namespace mdcg
