#include "engine/edges/radial_table.hpp"

#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/spline_basis.hpp"

namespace mdcg {

namespace {

// The first rows are zeros, for edges that have no weights.
template <typename T>
constexpr std::int64_t ZERO_ROWS = TABLE_STEPS<T> + 1;

// A table is uniform in sqrt(r / r_max): `knots` intervals from START to 1, and knots / BEFORE more
// below START, rounded down. With the numbers of knots that the converter chooses, it begins
// between r_max / 64 and r_max / 57. Shorter edges are left to the exact network, because the
// distance transforms are steep there.
constexpr double START = 1.0 / 4;
constexpr int BEFORE = 6;

constexpr int FEWEST_KNOTS = 8;

// Turns values [n][width] at positions, which count steps from the first knot, into coefficients of
// the spline through them. Where a position is repeated, its second row is the derivative by the
// position. The matrix is totally positive, so elimination needs no pivots (de Boor and Pinkus
// 1977).
void solve(const std::vector<double>& positions, int knots, int degree, int width, double* c) {
    const int n = narrow(static_cast<std::int64_t>(positions.size())), band = 2 * degree + 1;
    std::vector<double> matrix(size(std::int64_t(n) * band));
    const auto at = [&](int row, int column) -> double& {
        return matrix[size(std::int64_t(row) * band + column - row + degree)];
    };
    std::vector<double> basis(size(degree + 1));
    for (int i = 0; i < n; ++i) {
        const double position = positions[size(i)];
        const int first = std::min(static_cast<int>(position), knots - 1);
        if (i > 0 && position == positions[size(i - 1)]) {
            // the derivative: a spline of one degree less of the differences of coefficients
            basis_at(degree - 1, position - first, basis.data());
            for (int k = degree; k >= 0; --k)
                at(i, first + k) =
                    (k > 0 ? basis[size(k - 1)] : 0.0) - (k < degree ? basis[size(k)] : 0.0);
        } else {
            basis_at(degree, position - first, basis.data());
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

}  // namespace

RadialSpec hidden_spec(RadialSpec spec) {
    const auto units = size(spec.units());
    RadialSpec::Layer& last = spec.layers.back();
    const auto in = size(last.in);
    last.out = static_cast<int>(units);
    last.weight.assign(in * units, 0.0);
    for (std::size_t k = 0; k < in; ++k) last.weight[k * units + k] = 1.0;
    if (!last.bias.empty()) {
        last.bias.assign(units, 0.0);
        last.bias.back() = 1.0;
    }
    return spec;
}

WeightColumns hidden_columns(const RadialSpec& spec, std::int64_t stride) {
    WeightColumns found;
    for (int k = 0; k < spec.units(); ++k) found.columns.push_back(k);
    found.width = stride;
    return found;
}

RadialSpline::RadialSpline(const RadialSpec& spec, int knots, int degree)
    : spec_(spec),
      network_(spec),
      last_(spec.last()),
      step_((1 - START) / knots),
      begin_(START - knots / BEFORE * step_),
      knots_(knots + knots / BEFORE),
      degree_(degree),
      outputs_(spec.layers.back().out) {
    const int midpoints = (degree - 3) / 2;  // at either end
    for (int i = 0; i <= knots_; ++i) {
        positions_.push_back(i);
        if (i == 0 || i == knots_) positions_.push_back(i);
        if (i < midpoints || (i < knots_ && i >= knots_ - midpoints)) positions_.push_back(i + 0.5);
    }
}

double RadialSpline::first(int receiver, int sender) const {
    return begin_ * begin_ * spec_.pair_r_max(receiver, sender);
}

double RadialSpline::step(int receiver, int sender) const {
    return step_ * std::sqrt(spec_.pair_r_max(receiver, sender));
}

std::vector<double> RadialSpline::hidden(const std::vector<double>& lengths, int receiver,
                                         int sender) const {
    constexpr std::int64_t capacity = 64;
    const std::int64_t stride = network_.hidden_stride();
    const auto count = static_cast<std::int64_t>(lengths.size());
    std::vector<double> found(size((count + capacity) * stride));
    AlignedArray<char> work(network_.work_bytes(capacity));
    AlignedArray<double> block(size(capacity * stride));
    const std::vector<std::int32_t> senders(capacity, sender), receivers(capacity, receiver);
    std::vector<double> r(capacity);
    for (std::int64_t start = 0; start < count; start += capacity) {
        const std::int64_t n = std::min(capacity, count - start);
        std::fill(r.begin(), r.end(), 2 * spec_.pair_r_max(receiver, sender));
        std::copy_n(lengths.begin() + start, n, r.begin());
        network_.forward({n, capacity, r.data(), senders.data(), receivers.data()}, {}, {},
                         work.data(), block.data());
        std::copy_n(block.data(), n * stride, found.begin() + start * stride);
    }
    return found;
}

std::vector<double> RadialSpline::hidden_slope(double length, int receiver, int sender) const {
    // one edge per unit, all of this length: edge k gets the gradient of unit k
    const int units = network_.units();
    const std::int64_t stride = network_.hidden_stride();
    const std::int64_t capacity = (units + 15) / 16 * 16;
    const std::vector<double> r(size(capacity), length);
    const std::vector<std::int32_t> senders(r.size(), sender), receivers(r.size(), receiver);
    AlignedArray<char> work(network_.work_bytes(capacity));
    AlignedArray<double> block(size(capacity * stride));
    std::vector<double> slope(r.size());
    const RadialEdges edges{capacity, capacity, r.data(), senders.data(), receivers.data()};
    network_.forward(edges, {}, {}, work.data(), block.data());
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = 0;
    for (int k = 0; k < units; ++k) block[size(k * stride + k)] = 1;
    network_.backward(edges, {}, {}, work.data(), block.data(), slope.data());
    return slope;
}

void RadialSpline::prepare(int receiver, int sender) const {
    if (pair_ == std::make_pair(receiver, sender)) return;
    pair_ = {-1, -1};  // in case memory runs out
    const double from = std::sqrt(first(receiver, sender)), h = step(receiver, sender);
    const double end = std::nextafter(spec_.pair_r_max(receiver, sender), 0.0);
    std::vector<double> lengths;
    for (const double position : positions_) {
        const double root = from + h * position;
        lengths.push_back(std::min(root * root, end));
    }
    hidden_ = hidden(lengths, receiver, sender);
    // derivatives by the position
    const std::int64_t stride = network_.hidden_stride();
    for (std::size_t i = 1; i < positions_.size(); ++i) {
        if (positions_[i] != positions_[i - 1]) continue;
        const std::vector<double> slope = hidden_slope(lengths[i], receiver, sender);
        for (int k = 0; k < network_.units(); ++k)
            hidden_[i * size(stride) + size(k)] = slope[size(k)] * 2 * std::sqrt(lengths[i]) * h;
    }
    pair_ = {receiver, sender};
}

void RadialSpline::fit(int receiver, int sender, int column, int count,
                       double* coefficients) const {
    prepare(receiver, sender);
    const SimdTable<double>& dense = simd<double>();
    const int units = network_.units();
    const std::int64_t stride = network_.hidden_stride();
    const PackedMatrix<double> matrix(last_.data() + column, units, count, outputs_, 1);
    const std::int64_t width = (count + 7) / 8 * 8;
    AlignedArray<double> solved(size(rows() * width));
    dense.gemm(rows(), hidden_.data(), stride, matrix, solved.data(), width, nullptr, false);
    solve(positions_, knots_, degree_, narrow(width), solved.data());
    for (int i = 0; i < rows(); ++i)
        std::copy_n(solved.data() + i * width, count, coefficients + i * count);
}

std::vector<double> RadialSpline::exact(const std::vector<double>& lengths, int receiver,
                                        int sender) const {
    const std::vector<double> units = hidden(lengths, receiver, sender);
    const std::int64_t stride = network_.hidden_stride();
    std::vector<double> weights(lengths.size() * size(outputs_));
    for (std::size_t i = 0; i < lengths.size(); ++i)
        for (int k = 0; k < network_.units(); ++k) {
            const double h = units[i * size(stride) + size(k)];
            const double* row = last_.data() + std::int64_t(k) * outputs_;
            double* to = weights.data() + i * size(outputs_);
            for (int o = 0; o < outputs_; ++o) to[o] += h * row[o];
        }
    return weights;
}

std::vector<double> RadialSpline::exact_slope(double length, int receiver, int sender) const {
    const std::vector<double> units = hidden_slope(length, receiver, sender);
    std::vector<double> slopes(size(outputs_));
    for (int k = 0; k < network_.units(); ++k) {
        const double h = units[size(k)];
        const double* row = last_.data() + std::int64_t(k) * outputs_;
        for (int o = 0; o < outputs_; ++o) slopes[size(o)] += h * row[o];
    }
    return slopes;
}

template <typename T>
RadialTable<T>::RadialTable(const RadialSpec& spec, WeightColumns columns, int degree)
    : spline_(spec, degree == 3 ? spec.knots : std::max(FEWEST_KNOTS, (spec.knots + 5) / 6),
              degree),
      columns_(std::move(columns)),
      groups_(spec, spline_,
              static_cast<double>(columns_.width) * spline_.rows() * sizeof(T) * (SINGLE ? 2 : 1)) {
}

template <typename T>
void RadialTable<T>::require(const std::int32_t* types, const std::int32_t* receiver,
                             const std::int32_t* sender, std::int64_t edges, std::int64_t nodes) {
    const std::vector<std::int32_t> missing =
        groups_.missing(types, receiver, sender, edges, nodes);
    if (missing.empty()) return;
    if (groups_.built() == 0) {  // missing() has forgotten all tables
        data_.resize(0);
        steps_.resize(0);
        rows_ = 0;
    }
    build(missing);
}

template <typename T>
void RadialTable<T>::build(const std::vector<std::int32_t>& groups) {
    constexpr int panel = row_align<T>();
    const std::int64_t old_rows = std::max(rows_, ZERO_ROWS<T>);
    const std::int64_t panels = columns_.width / panel;
    const std::int64_t rows = old_rows + static_cast<std::int64_t>(groups.size()) * spline_.rows();
    const std::size_t items = size(columns_.width * rows);
    AlignedArray<T> data(items), steps(SINGLE ? items : 0);
    for (std::int64_t p = 0; p < panels && rows_ > 0; ++p) {
        std::copy_n(data_.data() + p * rows_ * panel, rows_ * panel,
                    data.data() + p * rows * panel);
        if constexpr (SINGLE)
            std::copy_n(steps_.data() + p * rows_ * panel, rows_ * panel,
                        steps.data() + p * rows * panel);
    }
    const int outputs = static_cast<int>(columns_.columns.size());
    std::int64_t row = old_rows;
    constexpr int MAX_COLUMNS = 256;  // fitted at once
    std::vector<double> fitted(size(spline_.rows() * MAX_COLUMNS));
    for (const std::int32_t group : groups) {
        poll_interrupt();
        const auto [receiver, sender] = groups_.representative(group);
        for (int start = 0; start < outputs; start += MAX_COLUMNS) {
            const int count = std::min(MAX_COLUMNS, outputs - start);
            spline_.fit(receiver, sender, start, count, fitted.data());
            for (int k = 0; k < count; ++k) {
                const std::int64_t column = columns_.columns[size(start + k)];
                const std::int64_t to = (column / panel * rows + row) * panel + column % panel;
                for (int i = 0; i < spline_.rows(); ++i) {
                    const double* c = fitted.data() + std::int64_t(i) * count + k;
                    const auto at = size(to + i * panel);
                    data[at] = static_cast<T>(c[0]);
                    if (SINGLE && i + 1 < spline_.rows())
                        steps[at] = static_cast<T>(c[count] - c[0]);
                }
            }
        }
        row += spline_.rows();
    }
    // nothing changes before this line, because everything above may run out of memory
    groups_.add(groups, old_rows, spline_.rows());
    data_ = std::move(data);
    steps_ = std::move(steps);
    rows_ = rows;
    ++num_builds_;
}

template <typename T>
bool RadialTable<T>::look_up(const RadialEdges& edges, std::int32_t* knot, T* basis,
                             T* slope) const {
    constexpr std::int64_t AT_ONCE = 64;
    const std::int64_t n = edges.capacity;
    const int last = spline_.rows() - TABLE_STEPS<T> - 1;
    bool all = true;  // edges are in the table
    for (std::int64_t first = 0; first < n; first += AT_ONCE) {
        const std::int64_t count = std::min(AT_ONCE, n - first);
        double position[AT_ONCE] = {}, within[AT_ONCE] = {}, by_length[AT_ONCE] = {};
        std::fill_n(knot + first, count, 0);
        for (std::int64_t i = 0; i < std::min(count, edges.count - first); ++i) {
            const std::int64_t e = first + i;
            const TableGroups::Place pair =
                groups_.place(edges.receiver_type[e], edges.sender_type[e]);
            const double root = std::sqrt(edges.length[e]);
            const double from_first = (root - pair.first) * pair.inverse_step;
            all = all && from_first >= 0;
            if (!(edges.length[e] < pair.r_max)) continue;
            const int interval = std::min(last, static_cast<int>(std::max(0.0, from_first)));
            knot[e] = pair.first_row + interval;
            position[i] = from_first - interval;
            within[i] = 1;
            by_length[i] = pair.inverse_step / (2 * root);
        }
        // Because the b sum to one,
        //     sum_j b[j] c[j] = c[0] + sum_j (b[j + 1] + .. + b[degree]) (c[j + 1] - c[j]).
        // The derivative is a spline of the differences, of one degree less.
        simd<T>().splines(count, position, within, by_length, n, basis + first, slope + first);
    }
    return all;
}

template class RadialTable<float>;
template class RadialTable<double>;

}  // namespace mdcg
