#include "engine/edges/radial_table.hpp"

#include <algorithm>
#include <cmath>

#include "core/interrupt.hpp"

namespace mdcg {

namespace {

// The first rows are zeros, for edges that have no weights.
constexpr std::int64_t ZERO_ROWS = 4;

// Shorter edges are left to the exact network: the distance transforms are steep there.
constexpr double FIRST = 1.0 / 16;

// Clamped cubic B-spline: coefficients [n + 3][width] from values [n + 1][width] and derivatives
// [width] at both ends. Thomas algorithm on (c[i-1] + 4 c[i] + c[i+1]) / 6 = f[i], all columns at
// once.
void solve(int n, int width, double step, const double* values, const double* slope_first,
           const double* slope_last, double* c) {
    std::vector<double> upper(static_cast<std::size_t>(n + 1));
    double* inner = c + width;  // c[0]
    for (int i = 0; i <= n; ++i) {
        const double below = i == 0 ? 0.0 : (i == n ? 2.0 : 1.0);
        const double above = i == n ? 0.0 : (i == 0 ? 2.0 : 1.0);
        const double pivot = 4.0 - (i == 0 ? 0.0 : below * upper[static_cast<std::size_t>(i - 1)]);
        upper[static_cast<std::size_t>(i)] = above / pivot;
        const double* f = values + static_cast<std::ptrdiff_t>(i) * width;
        double* row = inner + static_cast<std::ptrdiff_t>(i) * width;
        for (int k = 0; k < width; ++k) {
            double right = 6.0 * f[k];
            if (i == 0) right += 2.0 * step * slope_first[k];
            if (i == n) right -= 2.0 * step * slope_last[k];
            if (i > 0) right -= below * row[k - width];
            row[k] = right / pivot;
        }
    }
    for (int i = n; i-- > 0;)
        for (int k = 0; k < width; ++k) {
            const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(i) * width + k;
            inner[at] -= upper[static_cast<std::size_t>(i)] * inner[at + width];
        }
    for (int k = 0; k < width; ++k) {
        c[k] = c[2 * width + k] - 2.0 * step * slope_first[k];
        c[static_cast<std::ptrdiff_t>(n + 2) * width + k] =
            c[static_cast<std::ptrdiff_t>(n) * width + k] + 2.0 * step * slope_last[k];
    }
}

void spline_basis(double t, double* value, double* slope) {
    const double s = 1.0 - t;
    value[0] = s * s * s / 6;
    value[1] = (3 * t * t * t - 6 * t * t + 4) / 6;
    value[2] = (3 * s * s * s - 6 * s * s + 4) / 6;
    value[3] = t * t * t / 6;
    slope[0] = -s * s / 2;
    slope[1] = t * (3 * t - 4) / 2;
    slope[2] = -s * (3 * s - 4) / 2;
    slope[3] = t * t / 2;
}

}  // namespace

RadialSpline::RadialSpline(const RadialSpec& spec, int knots)
    : spec_(spec),
      network_(spec),
      last_(spec.last()),
      knots_(knots),
      outputs_(spec.layers.back().out) {}

double RadialSpline::first(int receiver, int sender) const {
    return FIRST * spec_.pair_r_max(receiver, sender);
}

double RadialSpline::step(int receiver, int sender) const {
    return (std::sqrt(spec_.pair_r_max(receiver, sender)) - std::sqrt(first(receiver, sender))) /
           knots_;
}

std::vector<double> RadialSpline::hidden(const std::vector<double>& lengths, int receiver,
                                         int sender) const {
    constexpr std::int64_t capacity = 64;
    const std::int64_t stride = network_.hidden_stride();
    const auto count = static_cast<std::int64_t>(lengths.size());
    std::vector<double> found(static_cast<std::size_t>((count + capacity) * stride));
    AlignedArray<char> work(network_.work_bytes(capacity));
    AlignedArray<double> block(static_cast<std::size_t>(capacity * stride));
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
    // one edge per unit, all of this length: the gradient of unit k stands at edge k
    const int units = network_.units();
    const std::int64_t stride = network_.hidden_stride();
    const std::int64_t capacity = (units + 15) / 16 * 16;
    const std::vector<double> r(static_cast<std::size_t>(capacity), length);
    const std::vector<std::int32_t> senders(r.size(), sender), receivers(r.size(), receiver);
    AlignedArray<char> work(network_.work_bytes(capacity));
    AlignedArray<double> block(static_cast<std::size_t>(capacity * stride));
    std::vector<double> slope(r.size());
    const RadialEdges edges{capacity, capacity, r.data(), senders.data(), receivers.data()};
    network_.forward(edges, {}, {}, work.data(), block.data());
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = 0;
    for (int k = 0; k < units; ++k) block[static_cast<std::size_t>(k * stride + k)] = 1;
    network_.backward(edges, {}, {}, work.data(), block.data(), slope.data());
    return slope;
}

void RadialSpline::prepare(int receiver, int sender) const {
    if (pair_ == std::make_pair(receiver, sender)) return;
    pair_ = {-1, -1};  // none, should memory run out
    const double from = std::sqrt(first(receiver, sender)), h = step(receiver, sender);
    const double end = std::nextafter(spec_.pair_r_max(receiver, sender), 0.0);
    std::vector<double> lengths(static_cast<std::size_t>(knots_) + 1);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
        const double root = from + h * static_cast<double>(i);
        lengths[i] = std::min(root * root, end);
    }
    hidden_ = hidden(lengths, receiver, sender);
    slope_first_ = hidden_slope(lengths.front(), receiver, sender);
    slope_last_ = hidden_slope(end, receiver, sender);
    for (double& slope : slope_first_) slope *= 2 * from;
    for (double& slope : slope_last_) slope *= 2 * std::sqrt(end);
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
    AlignedArray<double> values(static_cast<std::size_t>((knots_ + 1) * width));
    AlignedArray<double> ends(static_cast<std::size_t>(2 * width));
    dense.gemm(knots_ + 1, hidden_.data(), stride, matrix, values.data(), width, nullptr, false);
    dense.gemm(1, slope_first_.data(), stride, matrix, ends.data(), width, nullptr, false);
    dense.gemm(1, slope_last_.data(), stride, matrix, ends.data() + width, width, nullptr, false);
    std::vector<double> solved(static_cast<std::size_t>(rows() * width));
    solve(knots_, static_cast<int>(width), step(receiver, sender), values.data(), ends.data(),
          ends.data() + width, solved.data());
    for (int i = 0; i < rows(); ++i)
        std::copy_n(solved.data() + i * width, count, coefficients + i * count);
}

std::vector<double> RadialSpline::exact(const std::vector<double>& lengths, int receiver,
                                        int sender) const {
    const std::vector<double> units = hidden(lengths, receiver, sender);
    const std::int64_t stride = network_.hidden_stride();
    std::vector<double> weights(lengths.size() * static_cast<std::size_t>(outputs_));
    for (std::size_t i = 0; i < lengths.size(); ++i)
        for (int k = 0; k < network_.units(); ++k) {
            const double h =
                units[i * static_cast<std::size_t>(stride) + static_cast<std::size_t>(k)];
            const double* row = last_.data() + static_cast<std::ptrdiff_t>(k) * outputs_;
            double* to = weights.data() + i * static_cast<std::size_t>(outputs_);
            for (int o = 0; o < outputs_; ++o) to[o] += h * row[o];
        }
    return weights;
}

std::vector<double> RadialSpline::exact_slope(double length, int receiver, int sender) const {
    const std::vector<double> units = hidden_slope(length, receiver, sender);
    std::vector<double> slopes(static_cast<std::size_t>(outputs_));
    for (int k = 0; k < network_.units(); ++k) {
        const double h = units[static_cast<std::size_t>(k)];
        const double* row = last_.data() + static_cast<std::ptrdiff_t>(k) * outputs_;
        for (int o = 0; o < outputs_; ++o) slopes[static_cast<std::size_t>(o)] += h * row[o];
    }
    return slopes;
}

template <typename T>
RadialTable<T>::RadialTable(const RadialSpec& spec, WeightColumns columns)
    : spline_(spec, spec.knots),
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
    if (groups_.built() == 0) {  // forgotten
        data_.resize(0);
        steps_.resize(0);
        rows_ = 0;
    }
    build(missing);
}

template <typename T>
void RadialTable<T>::build(const std::vector<std::int32_t>& groups) {
    constexpr int panel = row_align<T>();
    const std::int64_t old_rows = std::max(rows_, ZERO_ROWS);
    const std::int64_t panels = columns_.width / panel;
    const std::int64_t rows = old_rows + static_cast<std::int64_t>(groups.size()) * spline_.rows();
    const auto size = static_cast<std::size_t>(columns_.width * rows);
    AlignedArray<T> data(size), steps(SINGLE ? size : 0);
    for (std::int64_t p = 0; p < panels && rows_ > 0; ++p) {
        std::copy_n(data_.data() + p * rows_ * panel, rows_ * panel,
                    data.data() + p * rows * panel);
        if constexpr (SINGLE)
            std::copy_n(steps_.data() + p * rows_ * panel, rows_ * panel,
                        steps.data() + p * rows * panel);
    }
    const int outputs = static_cast<int>(columns_.columns.size());
    std::int64_t row = old_rows;
    constexpr int wide = 256;
    std::vector<double> fitted(static_cast<std::size_t>(spline_.rows() * wide));
    for (const std::int32_t group : groups) {
        poll_interrupt();
        const auto [receiver, sender] = groups_.representative(group);
        for (int start = 0; start < outputs; start += wide) {
            const int count = std::min(wide, outputs - start);
            spline_.fit(receiver, sender, start, count, fitted.data());
            for (int k = 0; k < count; ++k) {
                const std::int64_t column = columns_.columns[static_cast<std::size_t>(start + k)];
                const std::int64_t to = (column / panel * rows + row) * panel + column % panel;
                for (int i = 0; i < spline_.rows(); ++i) {
                    const double* c = fitted.data() + static_cast<std::ptrdiff_t>(i) * count + k;
                    const auto at = static_cast<std::size_t>(to + i * panel);
                    data[at] = static_cast<T>(c[0]);
                    if (SINGLE && i + 1 < spline_.rows())
                        steps[at] = static_cast<T>(c[count] - c[0]);
                }
            }
        }
        row += spline_.rows();
    }
    // last: everything above may run out of memory
    groups_.add(groups, old_rows, spline_.rows());
    data_ = std::move(data);
    steps_ = std::move(steps);
    rows_ = rows;
    ++num_builds_;
}

template <typename T>
bool RadialTable<T>::look_up(const RadialEdges& edges, std::int32_t* knot, T* basis,
                             T* slope) const {
    const std::int64_t n = edges.capacity;
    const int last = spline_.rows() - 4;
    bool all = true;
    for (std::int64_t e = 0; e < edges.count; ++e) {
        const TableGroups::Place pair = groups_.place(edges.receiver_type[e], edges.sender_type[e]);
        const double root = std::sqrt(edges.length[e]);
        const bool inside = edges.length[e] < pair.r_max;
        const double place = (root - pair.first) * pair.inverse_step;
        all = all && place >= 0;
        const int i = std::min(last, static_cast<int>(std::max(0.0, inside ? place : 0.0)));
        knot[e] = inside ? pair.first_row + i : 0;
        double b[4], s[4];
        spline_basis(place - i, b, s);
        const double by_length = pair.inverse_step / (2 * root);
        // sum_j b[j] c[j] = c[0] + sum_j (b[j + 1] + .. + b[3]) (c[j + 1] - c[j]): b sum to one
        double value = 0, derivative = 0;
        for (int j = 2; j >= 0; --j) {
            value += b[j + 1];
            derivative += s[j + 1];
            basis[j * n + e] = inside ? static_cast<T>(value) : T(0);
            slope[j * n + e] = inside ? static_cast<T>(derivative * by_length) : T(0);
        }
    }
    for (std::int64_t e = edges.count; e < n; ++e) {
        knot[e] = 0;
        for (int j = 0; j < 3; ++j) basis[j * n + e] = slope[j * n + e] = T(0);
    }
    return all;
}

template class RadialTable<float>;
template class RadialTable<double>;

}  // namespace mdcg
