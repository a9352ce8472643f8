#include "engine/cuda/edges/polynomial_table.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t ZERO_ROWS = 1;
constexpr int NODES = 24;    // of an interval: more than coefficients, to average rounding
constexpr int FITTED = 128;  // columns of a spline at a time
constexpr double PI = 3.14159265358979323846;

// to[columns] += factor * from[columns].
void add(int columns, double factor, const double* from, double* to) {
    for (int c = 0; c < columns; ++c) to[c] += factor * from[c];
}

// Chebyshev polynomials in powers: [degree + 1 polynomials][degree + 1 powers].
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

}  // namespace

template <typename T>
PolynomialTable<T>::PolynomialTable(const RadialSpec& spec, WeightColumns columns)
    : spec_(spec), columns_(std::move(columns)), last_(spec.last()), degree_(3), spline_(true) {
    start(spec.knots);
}

template <typename T>
PolynomialTable<T>::PolynomialTable(const RadialSpec& spec, WeightColumns columns, int degree,
                                    TableError allowed)
    : spec_(spec),
      columns_(std::move(columns)),
      last_(spec.last()),
      degree_(degree),
      spline_(false),
      allowed_(allowed) {
    start(FEWEST);
}

template <typename T>
void PolynomialTable<T>::start(int intervals) {
    intervals_ = intervals;
    units_ = std::make_unique<RadialSpline>(hidden_spec(spec_), intervals, 3);
    weights_ = std::make_unique<RadialSpline>(spec_, intervals, 3);
    groups_ = std::make_unique<TableGroups>(
        spec_, *weights_, static_cast<double>(row_items()) * intervals * sizeof(T));
}

template <typename T>
void PolynomialTable<T>::take_list(const DeviceEdges& graph, const DeviceStream& stream) {
    if (!available_ || (data_ && groups_->complete())) return;
    std::vector<std::int32_t> types(size(spec_.num_types));  // one node of each
    std::iota(types.begin(), types.end(), 0);
    const TypePairs& pairs = graph.pairs;
    const std::vector<std::int32_t> missing =
        groups_->missing(types.data(), pairs.receiver.data(), pairs.sender.data(),
                         static_cast<std::int64_t>(pairs.receiver.size()), spec_.num_types);
    if (data_ && missing.empty()) return;
    if (groups_->built() == 0) {  // forgotten
        built_.clear();
        rows_ = 0;
    }
    build(missing, stream);
}

template <typename T>
void PolynomialTable<T>::build(const std::vector<std::int32_t>& groups,
                               const DeviceStream& stream) {
    const int before = intervals_;
    for (const std::int32_t group : groups)
        while (!spline_) {
            const TableError error = measure(group, fit(group));
            if (error.value <= allowed_.value && error.slope <= allowed_.slope) break;
            const int more = intervals_ + intervals_ / 2;
            if (more > MOST) {
                available_ = false;
                return;
            }
            start(more);
        }
    std::vector<std::int32_t> wanted = groups;
    if (intervals_ != before) {  // tables of earlier lists as well
        wanted.insert(wanted.begin(), built_.begin(), built_.end());
        built_.clear();
        rows_ = 0;
    }
    upload(std::move(wanted), stream);
    upload_places(stream);
}

template <typename T>
std::vector<double> PolynomialTable<T>::fit(std::int32_t group) const {
    poll_interrupt();
    const auto [receiver, sender] = groups_->representative(group);
    return spline_ ? fit_spline(receiver, sender) : project(receiver, sender);
}

template <typename T>
std::vector<double> PolynomialTable<T>::fit_spline(int receiver, int sender) const {
    const int outputs = spec_.layers.back().out;
    std::vector<double> found(size(intervals_) * 4 * size(outputs));
    weights_->prepare(receiver, sender);
    const auto columns = [&](int start, int count) {
        std::vector<double> fitted(size(weights_->rows() * count));
        weights_->fit(receiver, sender, start, count, fitted.data());
        for (int i = 0; i < intervals_; ++i) {
            const double* c0 = fitted.data() + std::ptrdiff_t(i) * count;
            const double *c1 = c0 + count, *c2 = c1 + count, *c3 = c2 + count;
            double* const to = found.data() + std::ptrdiff_t(i) * 4 * outputs + start;
            for (int k = 0; k < count; ++k) {
                // powers of t = (1 + z) / 2
                const double a0 = (c0[k] + 4 * c1[k] + c2[k]) / 6, a1 = (c2[k] - c0[k]) / 2;
                const double a2 = (c0[k] - 2 * c1[k] + c2[k]) / 2;
                const double a3 = (c3[k] - 3 * c2[k] + 3 * c1[k] - c0[k]) / 6;
                to[k] = a0 + a1 / 2 + a2 / 4 + a3 / 8;
                to[outputs + k] = a1 / 2 + a2 / 2 + 3 * a3 / 8;
                to[2 * outputs + k] = a2 / 4 + 3 * a3 / 8;
                to[3 * outputs + k] = a3 / 8;
            }
        }
    };
    FirstError error;
    share_in_turns(usable_threads(0), (outputs + FITTED - 1) / FITTED, 1,
                   [&](std::int64_t number, int) {
                       try {
                           const int start = static_cast<int>(number) * FITTED;
                           columns(start, std::min(FITTED, outputs - start));
                       } catch (...) {
                           error.keep();
                       }
                   });
    error.rethrow();
    return found;
}

// Projected on Chebyshev polynomials, for the hidden units, as a polynomial is linear in what it
// stands for.
template <typename T>
std::vector<double> PolynomialTable<T>::project(int receiver, int sender) const {
    const double first = std::sqrt(units_->first(receiver, sender));
    const double step = units_->step(receiver, sender);
    const int count = degree_ + 1, units = spec_.units(), outputs = spec_.layers.back().out;
    std::vector<double> nodes(NODES), lengths, projection(size(count) * NODES);
    for (int n = 0; n < NODES; ++n) nodes[size(n)] = std::cos((n + 0.5) * PI / NODES);
    for (int j = 0; j < count; ++j)
        for (int n = 0; n < NODES; ++n)
            projection[size(j * NODES + n)] =
                std::cos(j * (n + 0.5) * PI / NODES) * (j > 0 ? 2.0 : 1.0) / NODES;
    for (int i = 0; i < intervals_; ++i)
        for (const double z : nodes) {
            const double root = first + step * (i + 0.5 + 0.5 * z);
            lengths.push_back(root * root);
        }
    const std::vector<double> hidden = units_->exact(lengths, receiver, sender);
    const std::vector<double> powers = chebyshev_powers(degree_);
    std::vector<double> found(size(intervals_) * size(count) * size(outputs), 0.0);
    std::vector<double> series(size(count) * size(units)), monomials(series.size());
    for (int i = 0; i < intervals_; ++i) {
        // series first: its last items are small, and stay so
        std::fill(series.begin(), series.end(), 0.0);
        std::fill(monomials.begin(), monomials.end(), 0.0);
        for (int j = 0; j < count; ++j)
            for (int n = 0; n < NODES; ++n)
                add(units, projection[size(j * NODES + n)],
                    hidden.data() + std::ptrdiff_t(i * NODES + n) * units,
                    series.data() + std::ptrdiff_t(j) * units);
        for (int j = 0; j < count; ++j)
            for (int k = 0; k <= j; ++k)
                add(units, powers[size(j * count + k)], series.data() + std::ptrdiff_t(j) * units,
                    monomials.data() + std::ptrdiff_t(k) * units);
        for (int k = 0; k < count; ++k)
            for (int u = 0; u < units; ++u)
                add(outputs, monomials[size(k * units + u)],
                    last_.data() + std::ptrdiff_t(u) * outputs,
                    found.data() + std::ptrdiff_t(i * count + k) * outputs);
    }
    return found;
}

// Between the nodes and at both ends of intervals.
template <typename T>
TableError PolynomialTable<T>::measure(std::int32_t group,
                                       const std::vector<double>& powers) const {
    const auto [receiver, sender] = groups_->representative(group);
    const double first = std::sqrt(weights_->first(receiver, sender));
    const double step = weights_->step(receiver, sender);
    const double end = std::nextafter(spec_.pair_r_max(receiver, sender), 0.0);
    const int count = degree_ + 1, outputs = spec_.layers.back().out;
    constexpr double PLACES[] = {-1.0, -0.77, -0.3, 0.13, 0.62, 1.0};
    constexpr int PER = static_cast<int>(std::size(PLACES));
    const bool slopes = std::isfinite(allowed_.slope);
    double largest = 0, largest_slope = 0, error = 0, error_slope = 0;
    std::vector<double> value(size(outputs)), slope(size(outputs));
    for (int i = 0; i < intervals_; ++i) {
        std::vector<double> lengths;
        for (const double z : PLACES) {
            const double root = first + step * (i + 0.5 + 0.5 * z);
            lengths.push_back(std::min(root * root, end));
        }
        const std::vector<double> want = weights_->exact(lengths, receiver, sender);
        const int sloped = i % 2 == 0 ? 0 : PER - 1;  // rounding shows most at ends
        std::vector<double> want_slope;
        if (slopes) want_slope = weights_->exact_slope(lengths[size(sloped)], receiver, sender);
        for (int p = 0; p < PER; ++p) {
            const double z = PLACES[p];
            std::fill(value.begin(), value.end(), 0.0);
            std::fill(slope.begin(), slope.end(), 0.0);
            for (int k = count; k-- > 0;) {
                const double* a = powers.data() + std::ptrdiff_t(i * count + k) * outputs;
                for (int o = 0; o < outputs; ++o) {
                    slope[size(o)] = slope[size(o)] * z + value[size(o)];
                    value[size(o)] = value[size(o)] * z + a[o];
                }
            }
            for (int o = 0; o < outputs; ++o) {
                const double exact = want[size(p * outputs + o)];
                largest = std::max(largest, std::abs(exact));
                error = std::max(error, std::abs(value[size(o)] - exact));
            }
            if (p != sloped || !slopes) continue;
            const double by_length = 1.0 / (step * (first + step * (i + 0.5 + 0.5 * z)));
            for (int o = 0; o < outputs; ++o) {
                const double exact = want_slope[size(o)];
                largest_slope = std::max(largest_slope, std::abs(exact));
                error_slope = std::max(error_slope, std::abs(slope[size(o)] * by_length - exact));
            }
        }
    }
    return {largest > 0 ? error / largest : 0, largest_slope > 0 ? error_slope / largest_slope : 0};
}

// Tables of the groups behind those that are there.
template <typename T>
void PolynomialTable<T>::upload(std::vector<std::int32_t> groups, const DeviceStream& stream) {
    const std::int64_t width = row_items(), old_rows = std::max(rows_, ZERO_ROWS);
    const std::int64_t rows = old_rows + static_cast<std::int64_t>(groups.size()) * intervals_;
    auto memory = std::make_unique<DeviceMemory>(stream.device());
    memory->reserve(size(rows * width) * sizeof(T));
    T* const data = memory->template as<T>();
    if (rows_ > 0)
        copy_on_device(data, data_->data(), size(rows_ * width) * sizeof(T), stream);
    else
        clear_on_device(data, size(ZERO_ROWS * width) * sizeof(T), stream);
    const int count = degree_ + 1, outputs = spec_.layers.back().out;
    std::int64_t row = old_rows;
    for (const std::int32_t group : groups) {
        const std::vector<double> powers = fit(group);
        std::vector<T> table(size(intervals_ * width), T(0));
        for (std::int64_t i = 0; i < intervals_; ++i)
            for (int k = 0; k < count; ++k)
                for (int o = 0; o < outputs; ++o)
                    table[size(i * width +
                               2 * (k / 2 * columns_.width + columns_.columns[size(o)]) + k % 2)] =
                        static_cast<T>(powers[size((i * count + k) * outputs + o)]);
        copy_to_device(data + row * width, table.data(), table.size() * sizeof(T), stream);
        stream.synchronize();
        row += intervals_;
    }
    stream.synchronize();
    groups_->add(groups, old_rows, intervals_);
    built_.insert(built_.end(), groups.begin(), groups.end());
    data_ = std::move(memory);
    rows_ = rows;
}

template <typename T>
void PolynomialTable<T>::upload_places(const DeviceStream& stream) {
    const std::vector<TableEntry> places = table_places(*groups_, spec_.num_types);
    if (!places_) places_ = std::make_unique<DeviceMemory>(stream.device());
    places_->reserve(places.size() * sizeof(TableEntry));
    places_->upload(places.data(), places.size() * sizeof(TableEntry), stream);
    stream.synchronize();
}

template class PolynomialTable<float>;
template class PolynomialTable<double>;

}  // namespace mdcg
