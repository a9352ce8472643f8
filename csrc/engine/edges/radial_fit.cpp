#include "engine/edges/radial_fit.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/spline_basis.hpp"
#include "engine/rows.hpp"

namespace mdcg {

namespace {

constexpr double PI = 3.14159265358979323846;
constexpr double SPLINE_BEGIN = 1.0 / 8;    // fraction of the square root of the cutoff
constexpr double CHECKED_FROM = 1.0 / 64;   // fraction of the cutoff
constexpr double CORE = 0.5;                // Å
constexpr double UNIT = 1;                  // Å
constexpr double CORE_FACTOR = 10;          // multiplies limits
constexpr int MAX_SPLINE_INTERVALS = 1024;  // tables of CPUs should stay in their caches
constexpr int MAX_POLYNOMIAL_INTERVALS = 1 << 14;
constexpr int MAX_CHECKED = 128;  // outputs, spread over all
constexpr int MAX_SAMPLED = 128;  // intervals of polynomials, spread over all
constexpr int GRID = 256;         // lengths at which weights are measured
// Positions within an interval at which fits are compared with the network. The error of a spline
// is largest in the middle, the error of its derivative at the next two positions or at the ends,
// and errors of polynomials at the ends.
constexpr double PLACES[] = {0.0, 0.2113248654, 0.5, 0.7886751346, 1.0};
constexpr int NUM_PLACES = static_cast<int>(std::size(PLACES));

// Turns values [n][width] at `places`, in steps from the first knot, into coefficients of the
// spline through them. If a place is repeated, its second row is the derivative by the place. The
// matrix is totally positive, so elimination needs no pivots (de Boor and Pinkus 1977).
void solve(const std::vector<double>& places, int knots, int degree, int width, double* c) {
    const int n = narrow(static_cast<std::int64_t>(places.size())), band = 2 * degree + 1;
    std::vector<double> matrix(size(std::int64_t(n) * band));
    const auto at = [&](int row, int column) -> double& {
        return matrix[size(std::int64_t(row) * band + column - row + degree)];
    };
    std::vector<double> basis(size(degree + 1));
    for (int i = 0; i < n; ++i) {
        const double place = places[size(i)];
        const int first = std::min(static_cast<int>(place), knots - 1);
        if (i > 0 && place == places[size(i - 1)]) {  // differences of a spline of one degree less
            basis_at(degree - 1, place - first, basis.data());
            for (int k = degree; k >= 0; --k)
                at(i, first + k) =
                    (k > 0 ? basis[size(k - 1)] : 0.0) - (k < degree ? basis[size(k)] : 0.0);
        } else {
            basis_at(degree, place - first, basis.data());
            for (int k = 0; k <= degree; ++k) at(i, first + k) = basis[size(k)];
        }
    }
    const auto add = [&](int to, double factor, int from) {
        double* const target = c + std::int64_t(to) * width;
        const double* const source = c + std::int64_t(from) * width;
        for (int k = 0; k < width; ++k) target[k] += factor * source[k];
    };
    for (int i = 0; i < n; ++i)
        for (int row = i + 1; row < std::min(n, i + degree + 1); ++row) {
            const double factor = -at(row, i) / at(i, i);
            if (factor == 0) continue;
            for (int k = i; k < std::min(n, i + degree + 1); ++k) at(row, k) += factor * at(i, k);
            add(row, factor, i);
        }
    for (int i = n; i-- > 0;) {
        for (int k = i + 1; k < std::min(n, i + degree + 1); ++k) add(i, -at(i, k), k);
        for (int k = 0; k < width; ++k) c[std::int64_t(i) * width + k] /= at(i, i);
    }
}

// to[count] += factor * from[count].
void add(int count, double factor, const double* from, double* to) {
    for (int k = 0; k < count; ++k) to[k] += factor * from[k];
}

// Coefficients of Chebyshev polynomials: [degree + 1 polynomials][degree + 1 powers].
std::vector<double> chebyshev_powers(int degree) {
    const std::size_t n = size(degree) + 1;
    std::vector<double> found(n * n, 0.0);
    found[0] = 1;
    if (degree > 0) found[n + 1] = 1;
    for (std::size_t j = 2; j < n; ++j)
        for (std::size_t k = 0; k < n; ++k)
            found[j * n + k] =
                (k > 0 ? 2 * found[(j - 1) * n + k - 1] : 0.0) - found[(j - 2) * n + k];
    return found;
}

// Factors of the rows of an interval at a place, for the value and for its derivative by the place,
// [degree + 1] each.
void row_factors(FitKind kind, int degree, double place, double* value, double* slope) {
    if (kind == FitKind::kSpline) {
        basis_at(degree, place, value);
        std::vector<double> lower(size(degree));
        basis_at(degree - 1, place, lower.data());
        for (int k = 0; k <= degree; ++k)
            slope[k] = (k > 0 ? lower[size(k - 1)] : 0.0) - (k < degree ? lower[size(k)] : 0.0);
        return;
    }
    const double z = 2 * place - 1;
    double power = 1;
    slope[0] = 0;
    for (int k = 0; k <= degree; ++k) {
        value[k] = power;
        if (k < degree) slope[k + 1] = 2 * (k + 1) * power;
        power *= z;
    }
}

// Returns rows [count][in] times a matrix: [count][columns of the matrix, padded].
AlignedArray<double> product(const std::vector<double>& rows, std::int64_t count, int in,
                             const PackedMatrix<double>& matrix) {
    AlignedArray<double> found(size(count * matrix.panels() * row_align<double>()));
    simd<double>().gemm(count, rows.data(), in, matrix, found.data(),
                        matrix.panels() * row_align<double>(), nullptr, false);
    return found;
}

}  // namespace

RadialFit::RadialFit(const RadialSpec& spec, FitKind kind, int degree, TableLimit limit,
                     int singles)
    : spec_(spec),
      network_(spec),
      last_(spec.last()),
      kind_(kind),
      degree_(degree),
      singles_(singles),
      max_intervals_(kind == FitKind::kSpline ? MAX_SPLINE_INTERVALS : MAX_POLYNOMIAL_INTERVALS),
      threads_(kind == FitKind::kSpline ? 1 : usable_threads(0)),
      limit_(limit) {
    const int outputs = spec_.layers.back().out, count = std::min(outputs, MAX_CHECKED);
    for (int k = 0; k < count; ++k)
        checked_.push_back(static_cast<int>(std::int64_t(k) * outputs / count));
    std::vector<double> part(size(units()) * checked_.size()), positive(part.size());
    for (int u = 0; u < units(); ++u)
        for (std::size_t k = 0; k < checked_.size(); ++k) {
            const double weight = last_[size(std::int64_t(u) * outputs + checked_[k])];
            part[size(u) * checked_.size() + k] = weight;
            positive[size(u) * checked_.size() + k] = std::abs(weight);
        }
    weights_ = PackedMatrix<double>(part.data(), units(), count, count, 1);
    absolute_ = PackedMatrix<double>(positive.data(), units(), count, count, 1);
}

PackedMatrix<double> RadialFit::last_layer(int begin, int count) const {
    return PackedMatrix<double>(last_.data() + begin, units(), count, spec_.layers.back().out, 1);
}

TableGrid RadialFit::grid(int receiver, int sender, int intervals) const {
    const bool spline = kind_ == FitKind::kSpline;
    const double end = std::sqrt(spec_.pair_r_max(receiver, sender));
    const double first = spline ? SPLINE_BEGIN * end : 0.0, span = end - first;
    if (spec_.functions.cutoff_start == 0)
        return {first, span / intervals, intervals / span, intervals, intervals};
    const double kink = std::sqrt(spec_.functions.cutoff_start), behind = end - kink;
    // A whole number of intervals lies behind the kink, and as many as a spline needs at least.
    const int fewest = spline ? std::max(1, 2 * places_between()) : 1;
    const int after = std::max(fewest, static_cast<int>(std::ceil(intervals * behind / span)));
    const double step = behind / after, before = std::ceil((kink - first) / step);
    if (before > 2 * max_intervals_) return {};  // the kink is too close to the cutoff
    const int intervals_before = static_cast<int>(before);
    return {kink - before * step, step, after / behind, intervals_before + after, intervals_before};
}

double RadialFit::core(int receiver, int sender) const {
    return std::min(CORE, spec_.pair_r_max(receiver, sender) / 8);
}

RadialFit::Units RadialFit::evaluate(const std::vector<double>& lengths, int receiver,
                                     int sender) const {
    constexpr std::int64_t capacity = 64;
    const std::int64_t stride = network_.hidden_stride();
    const auto count = static_cast<std::int64_t>(lengths.size());
    const double r_max = spec_.pair_r_max(receiver, sender);
    Units found;
    found.values.resize(size(count * units()));
    found.slopes.resize(size(count * units()));
    const std::vector<std::int32_t> senders(capacity, sender), receivers(capacity, receiver);
    const auto take = [&](std::int64_t start) {
        AlignedArray<char> work(network_.work_bytes(capacity));
        AlignedArray<double> values(size(capacity * stride)), slopes(size(capacity * stride));
        const std::int64_t n = std::min(capacity, count - start);
        std::vector<double> r(capacity, 2 * r_max);
        // At the cutoff itself weights are zero; the fit needs their limit from below.
        for (std::int64_t i = 0; i < n; ++i)
            r[size(i)] = std::min(lengths[size(start + i)], std::nextafter(r_max, 0.0));
        const RadialEdges edges{n, capacity, r.data(), senders.data(), receivers.data()};
        network_.forward(edges, {}, {}, work.data(), values.data());
        network_.derivative(edges, work.data(), slopes.data());
        for (std::int64_t i = 0; i < n; ++i) {
            std::copy_n(values.data() + i * stride, units(),
                        found.values.begin() + (start + i) * units());
            std::copy_n(slopes.data() + i * stride, units(),
                        found.slopes.begin() + (start + i) * units());
        }
    };
    FirstError error;
    share_in_turns(threads_, ceil_div(count, capacity), 1, [&](std::int64_t block, int) {
        try {
            take(block * capacity);
        } catch (...) {
            error.keep();
        }
    });
    error.rethrow();
    return found;
}

std::vector<double> RadialFit::rows(int receiver, int sender, const TableGrid& grid) const {
    if (kind_ == FitKind::kSpline) {
        std::vector<double> found = fit_spline(receiver, sender, grid, 0, grid.kink);
        if (grid.kink == grid.intervals) return found;
        const std::vector<double> behind =
            fit_spline(receiver, sender, grid, grid.kink, grid.intervals);
        found.insert(found.end(), behind.begin(), behind.end());
        return found;
    }
    std::vector<int> all(size(grid.intervals));
    std::iota(all.begin(), all.end(), 0);
    return fit_polynomials(receiver, sender, grid, all);
}

std::vector<double> RadialFit::fit_spline(int receiver, int sender, const TableGrid& grid,
                                          int first, int last) const {
    const double step = grid.step, begin = grid.first + step * first;
    const int intervals = last - first, more = places_between();
    std::vector<double> places, lengths;
    for (int i = 0; i <= intervals; ++i) {
        places.push_back(i);
        if (i == 0 || i == intervals) places.push_back(i);
        if (i < more || (i < intervals && i >= intervals - more)) places.push_back(i + 0.5);
    }
    for (const double place : places)
        lengths.push_back((begin + step * place) * (begin + step * place));
    Units units = evaluate(lengths, receiver, sender);
    for (std::size_t i = 1; i < places.size(); ++i)
        if (places[i] == places[i - 1])
            for (std::size_t k = 0; k < size(this->units()); ++k) {
                const std::size_t at = i * size(this->units()) + k;
                units.values[at] = units.slopes[at] * 2 * std::sqrt(lengths[i]) * step;
            }
    solve(places, intervals, degree_, this->units(), units.values.data());
    return units.values;
}

// Least squares at Chebyshev nodes. The result is a Chebyshev series first, whose last items are
// small, so that the highest powers become small, too.
std::vector<double> RadialFit::fit_polynomials(int receiver, int sender, const TableGrid& grid,
                                               const std::vector<int>& which) const {
    const double begin = grid.first, step = grid.step;
    const int count = degree_ + 1, width = units();
    const int nodes = count + count / 2;  // more than coefficients, to average rounding
    std::vector<double> lengths, projection(size(count * nodes));
    for (int j = 0; j < count; ++j)
        for (int n = 0; n < nodes; ++n)
            projection[size(j * nodes + n)] =
                std::cos(j * (n + 0.5) * PI / nodes) * (j > 0 ? 2.0 : 1.0) / nodes;
    for (const int i : which)
        for (int n = 0; n < nodes; ++n) {
            const double root = begin + step * (i + 0.5 + 0.5 * std::cos((n + 0.5) * PI / nodes));
            lengths.push_back(root * root);
        }
    const std::vector<double> values = evaluate(lengths, receiver, sender).values;
    const std::vector<double> powers = chebyshev_powers(degree_);
    std::vector<double> found(which.size() * size(count * width), 0.0);
    std::vector<double> series(size(count * width));
    for (std::size_t i = 0; i < which.size(); ++i) {
        std::fill(series.begin(), series.end(), 0.0);
        for (int j = 0; j < count; ++j)
            for (int n = 0; n < nodes; ++n)
                add(width, projection[size(j * nodes + n)],
                    values.data() + (static_cast<std::int64_t>(i) * nodes + n) * width,
                    series.data() + std::int64_t(j) * width);
        for (int j = 0; j < count; ++j)
            for (int k = 0; k <= j; ++k)
                add(width, powers[size(j * count + k)], series.data() + std::int64_t(j) * width,
                    found.data() + (static_cast<std::int64_t>(i) * count + k) * width);
    }
    return found;
}

void RadialFit::measure(int receiver, int sender, Sizes (&sizes)[2]) const {
    const double r_max = spec_.pair_r_max(receiver, sender), own = core(receiver, sender);
    std::vector<double> lengths;
    for (int i = 0; i <= GRID; ++i)
        lengths.push_back(r_max * (CHECKED_FROM + (1 - CHECKED_FROM) * i / GRID));
    Units units = evaluate(lengths, receiver, sender);
    const std::vector<double> slopes = units.slopes;
    const std::size_t count = checked_.size();
    for (int kind = 0; kind < 2; ++kind) {
        std::vector<double>& rows = kind == 0 ? units.values : units.slopes;
        const auto n = static_cast<std::int64_t>(lengths.size());
        const AlignedArray<double> weights = product(rows, n, this->units(), weights_);
        for (double& item : rows) item = std::abs(item);
        const AlignedArray<double> absolute = product(rows, n, this->units(), absolute_);
        const std::int64_t stride = weights_.panels() * row_align<double>();
        for (Sizes& zone : sizes) zone.own[kind].assign(count, 0.0);
        for (std::size_t i = 0; i < lengths.size(); ++i)
            // zone 1: all lengths; zone 0: without the core
            for (std::size_t zone = lengths[i] < own ? 1 : 0; zone < 2; ++zone)
                for (std::size_t k = 0; k < count; ++k) {
                    const std::size_t at = i * size(stride) + k;
                    sizes[zone].own[kind][k] = std::max(sizes[zone].own[kind][k], absolute[at]);
                    sizes[zone].largest[kind] =
                        std::max(sizes[zone].largest[kind], std::abs(weights[at]));
                }
    }
    // Where weights hardly change, their rounding limits the accuracy of derivatives.
    for (Sizes& zone : sizes) zone.largest[1] = std::max(zone.largest[1], zone.largest[0] / UNIT);
    // A model in float32 also rounds positions, by about as much in Å as weights relative to their
    // size. The second derivative says how much this changes derivatives.
    std::vector<double> bends(units.slopes.size());
    const std::size_t width = size(this->units());
    for (std::size_t i = 0; i + width < bends.size(); ++i)
        bends[i] = std::abs(slopes[i + width] - slopes[i]) * GRID / (r_max * (1 - CHECKED_FROM));
    const AlignedArray<double> absolute =
        product(bends, static_cast<std::int64_t>(lengths.size()), this->units(), absolute_);
    const std::size_t stride = size(absolute_.panels() * row_align<double>());
    std::vector<double> most[2] = {std::vector<double>(count), std::vector<double>(count)};
    for (std::size_t i = 0; i < lengths.size(); ++i)
        for (std::size_t zone = lengths[i] < own ? 1 : 0; zone < 2; ++zone)
            for (std::size_t k = 0; k < count; ++k)
                most[zone][k] = std::max(most[zone][k], absolute[i * stride + k]);
    for (std::size_t zone = 0; zone < 2; ++zone)
        for (std::size_t k = 0; k < count; ++k) sizes[zone].own[1][k] += UNIT * most[zone][k];
}

double RadialFit::error(int receiver, int sender, const TableGrid& grid,
                        const Sizes (&sizes)[2]) const {
    const double begin = grid.first, step = grid.step;
    const int intervals = grid.intervals;
    const double checked_from = CHECKED_FROM * spec_.pair_r_max(receiver, sender);
    const int count = degree_ + 1, width = units(), plain = count - singles_;
    const bool spline = kind_ == FitKind::kSpline;
    const int sampled = spline ? intervals : std::min(intervals, MAX_SAMPLED);
    std::vector<int> which;
    for (int k = 0; k < sampled; ++k)
        which.push_back(static_cast<int>(std::int64_t(k) * (intervals - 1) / (sampled - 1)));
    const std::vector<double> rows = spline ? this->rows(receiver, sender, grid)
                                            : fit_polynomials(receiver, sender, grid, which);
    std::vector<double> factors[2];
    for (std::vector<double>& each : factors) each.resize(size(NUM_PLACES * count));
    std::vector<double> lengths;
    std::vector<int> where;
    for (int p = 0; p < NUM_PLACES; ++p)
        row_factors(kind_, degree_, PLACES[p], &factors[0][size(p * count)],
                    &factors[1][size(p * count)]);
    for (int k = 0; k < sampled; ++k)
        for (int p = 0; p < NUM_PLACES; ++p) {
            const double root = begin + step * (which[size(k)] + PLACES[p]);
            if (root * root < checked_from) continue;
            lengths.push_back(root * root);
            where.push_back(k * NUM_PLACES + p);
        }
    Units units = evaluate(lengths, receiver, sender);
    // Replaces the values of units by their errors.
    const bool slopes = limit_.has_slopes();
    std::vector<double> fitted(size(width));
    for (std::size_t n = 0; n < lengths.size(); ++n)
        for (int kind = 0; kind < (slopes ? 2 : 1); ++kind) {
            const int i = where[n] / NUM_PLACES, p = where[n] % NUM_PLACES;
            const double* const factor = &factors[kind][size(p * count)];
            const int first_of_spline = i + (i >= grid.kink ? degree_ : 0);
            const double* const first_row =
                rows.data() + std::int64_t(spline ? first_of_spline : i * count) * width;
            std::fill(fitted.begin(), fitted.end(), 0.0);
            for (int k = count; k-- > 0;) {
                const double* const row = first_row + std::int64_t(k) * width;
                if (k >= plain)
                    for (int u = 0; u < width; ++u)
                        fitted[size(u)] = static_cast<float>(
                            fitted[size(u)] +
                            factor[k] * static_cast<double>(static_cast<float>(row[u])));
                else
                    add(width, factor[k], row, fitted.data());
            }
            double* const exact = (kind == 0 ? units.values : units.slopes).data() +
                                  static_cast<std::int64_t>(n) * width;
            const double scale = kind == 0 ? 1.0 : 1.0 / (2 * step * std::sqrt(lengths[n]));
            for (int u = 0; u < width; ++u) exact[u] = scale * fitted[size(u)] - exact[u];
        }
    const double core = this->core(receiver, sender);
    const std::int64_t stride = weights_.panels() * row_align<double>();
    double worst = 0;
    for (int kind = 0; kind < (slopes ? 2 : 1); ++kind) {
        const double largest = kind == 0 ? limit_.value : limit_.slope;
        const double own = kind == 0 ? limit_.own_value : limit_.own_slope;
        const AlignedArray<double> errors =
            product(kind == 0 ? units.values : units.slopes,
                    static_cast<std::int64_t>(lengths.size()), width, weights_);
        for (std::size_t n = 0; n < lengths.size(); ++n) {
            const bool in_core = lengths[n] < core;
            const Sizes& zone = sizes[in_core ? 1 : 0];
            for (std::size_t k = 0; k < checked_.size(); ++k) {
                // the lower bound serves weights that consist of rounding alone
                const double limit =
                    std::min(largest * zone.largest[kind],
                             own * std::max(zone.own[kind][k], 1e-6 * zone.largest[kind]));
                const double found = std::abs(errors[n * size(stride) + k]);
                if (found > 0)
                    worst = std::max(worst, found / (in_core ? CORE_FACTOR * limit : limit));
            }
        }
    }
    return worst;
}

TableGrid RadialFit::choose(int receiver, int sender) const {
    Sizes sizes[2];
    measure(receiver, sender, sizes);
    for (int intervals = limit_.min_intervals;;) {
        poll_interrupt();
        const TableGrid grid = this->grid(receiver, sender, intervals);
        if (grid.intervals == 0) return grid;
        const double worst = error(receiver, sender, grid, sizes);
        if (worst <= 1) return grid;
        if (intervals == max_intervals_) return worst <= limit_.accepted ? grid : TableGrid{};
        // if there are many intervals, errors of derivatives fall as their number to the power of
        // the degree
        const double factor = std::pow(worst, 1.0 / degree_);
        const double next = std::ceil(intervals * std::clamp(1.02 * factor, 1.05, 3.0));
        intervals = static_cast<int>(std::min<double>(next, max_intervals_));
    }
}

}  // namespace mdcg
