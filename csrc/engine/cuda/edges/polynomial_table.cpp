#include "engine/cuda/edges/polynomial_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t ZERO_ROWS = 1;
constexpr int NODES = 24;           // of an interval: more than coefficients, to average rounding
constexpr int FITTED = 128;         // columns of a spline at a time
constexpr double ROUNDING = 1e-13;  // of weights in double, relative to the largest
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
    : PolynomialTable(spec, std::move(columns), SPLINE_DEGREE, TableLimit{}) {
    spline_ = true;
}

template <typename T>
PolynomialTable<T>::PolynomialTable(const RadialSpec& spec, WeightColumns columns, int degree,
                                    TableLimit limit)
    : spec_(spec),
      columns_(std::move(columns)),
      last_(spec.last()),
      degree_(degree),
      spline_(false),
      limit_(limit) {
    if (!possible(degree))
        throw std::invalid_argument("no tables have polynomials of degree " +
                                    std::to_string(degree));
    // In double precision the package's knots do not count. With one, the range begins at r_max
    // / 16.
    const int knots = sizeof(T) == 4 ? spec.knots : 1;
    weights_ = std::make_unique<RadialSpline>(spec, knots, SPLINE_DEGREE);
    units_ = std::make_unique<RadialSpline>(hidden_spec(spec), knots, SPLINE_DEGREE);
    groups_ = std::make_unique<TableGroups>(spec, *weights_, 0.0);
}

template <typename T>
double PolynomialTable<T>::span(int receiver, int sender) const {
    return std::sqrt(spec_.pair_r_max(receiver, sender)) -
           std::sqrt(weights_->first(receiver, sender));
}

template <typename T>
std::vector<std::int32_t> PolynomialTable<T>::missing(const TypePairs& pairs) {
    std::vector<std::int32_t> types(size(spec_.num_types));  // one node of each
    std::iota(types.begin(), types.end(), 0);
    return groups_->missing(types.data(), pairs.receiver.data(), pairs.sender.data(),
                            static_cast<std::int64_t>(pairs.receiver.size()), spec_.num_types);
}

template <typename T>
void PolynomialTable<T>::on_new_list(const DeviceEdges& graph, const DeviceStream& stream) {
    available_ = true;
    if (data_ && groups_->complete()) return;
    std::vector<std::int32_t> groups = missing(graph.pairs);
    while (choose(groups)) groups = missing(graph.pairs);  // larger tables: fewer may fit
    if (!available_ || (data_ && groups.empty())) return;
    if (groups_->built() == 0) rows_ = 0;  // forgotten
    upload(groups, stream);
    upload_places(stream);
}

// Decides how many intervals the tables of groups have. True: some have more than all before.
template <typename T>
bool PolynomialTable<T>::choose(const std::vector<std::int32_t>& groups) {
    const int before = largest_;
    for (const std::int32_t group : groups) {
        if (choices_.count(group) == 0) {
            const auto [receiver, sender] = groups_->representative(group);
            choices_.emplace(group, choice(receiver, sender));
        }
        const int intervals = choices_.at(group).intervals;
        available_ = available_ && intervals > 0;
        largest_ = std::max(largest_, intervals);
    }
    if (largest_ == before) return false;
    groups_->set_table_bytes(static_cast<double>(row_items()) * largest_ * sizeof(T));
    return true;
}

// 0 intervals: none is good enough.
template <typename T>
typename PolynomialTable<T>::Choice PolynomialTable<T>::choice(int receiver, int sender) const {
    const Choice spline{weights_->intervals(), true};
    if (spline_) return spline;
    for (int intervals = limit_.fewest;;
         intervals = std::min(intervals + intervals / 2, kMaxIntervals)) {
        poll_interrupt();
        if (within_limit(receiver, sender, intervals)) return {intervals, false};
        if (intervals == kMaxIntervals) return sizeof(T) == 4 ? spline : Choice{0, false};
    }
}

template <typename T>
std::vector<double> PolynomialTable<T>::fit_spline(int receiver, int sender) const {
    const int outputs = spec_.layers.back().out, powers = degree_ + 1;
    const int intervals = weights_->intervals();
    std::vector<double> found(size(intervals) * size(powers) * size(outputs), 0.0);
    weights_->prepare(receiver, sender);
    const auto columns = [&](int start, int count) {
        std::vector<double> fitted(size(weights_->rows() * count));
        weights_->fit(receiver, sender, start, count, fitted.data());
        for (int i = 0; i < intervals; ++i) {
            const double* c0 = fitted.data() + std::ptrdiff_t(i) * count;
            const double *c1 = c0 + count, *c2 = c1 + count, *c3 = c2 + count;
            double* const to = found.data() + std::ptrdiff_t(i) * powers * outputs + start;
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

// The hidden units are projected on Chebyshev polynomials. The last layer is linear, so that it
// makes the polynomials of the weights of theirs.
template <typename T>
std::vector<double> PolynomialTable<T>::project(int receiver, int sender, int intervals) const {
    const double first = std::sqrt(weights_->first(receiver, sender));
    const double step = span(receiver, sender) / intervals;
    const int count = degree_ + 1, units = spec_.units(), outputs = spec_.layers.back().out;
    std::vector<double> nodes(NODES), lengths, projection(size(count) * NODES);
    for (int n = 0; n < NODES; ++n) nodes[size(n)] = std::cos((n + 0.5) * PI / NODES);
    for (int j = 0; j < count; ++j)
        for (int n = 0; n < NODES; ++n)
            projection[size(j * NODES + n)] =
                std::cos(j * (n + 0.5) * PI / NODES) * (j > 0 ? 2.0 : 1.0) / NODES;
    for (int i = 0; i < intervals; ++i)
        for (const double z : nodes) {
            const double root = first + step * (i + 0.5 + 0.5 * z);
            lengths.push_back(root * root);
        }
    const std::vector<double> hidden = units_->exact(lengths, receiver, sender);
    const std::vector<double> powers = chebyshev_powers(degree_);
    std::vector<double> found(size(intervals) * size(count) * size(outputs), 0.0);
    std::vector<double> series(size(count) * size(units)), monomials(series.size());
    for (int i = 0; i < intervals; ++i) {
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
bool PolynomialTable<T>::within_limit(int receiver, int sender, int intervals) const {
    const std::vector<double> powers = project(receiver, sender, intervals);
    const double first = std::sqrt(weights_->first(receiver, sender));
    const double step = span(receiver, sender) / intervals;
    const double end = std::nextafter(spec_.pair_r_max(receiver, sender), 0.0);
    const int count = degree_ + 1, outputs = spec_.layers.back().out;
    constexpr double PLACES[] = {-1.0, -0.77, -0.3, 0.13, 0.62, 1.0};
    constexpr int PER = static_cast<int>(std::size(PLACES));
    const bool slopes = std::isfinite(limit_.slope);
    double largest_slope = 0, error_slope = 0;
    std::vector<double> value(size(outputs)), slope(size(outputs));
    std::vector<double> sizes(size(outputs)), errors(size(outputs));
    for (int i = 0; i < intervals; ++i) {
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
                const bool single = k >= count - TABLE_SINGLES<T>;
                const auto next = [&](double sum, double more) {
                    if (!single) return sum * z + more;
                    return static_cast<double>(static_cast<float>(sum) * static_cast<float>(z) +
                                               static_cast<float>(more));
                };
                for (int o = 0; o < outputs; ++o) {
                    slope[size(o)] = next(slope[size(o)], value[size(o)]);
                    value[size(o)] = next(value[size(o)], a[o]);
                }
            }
            for (int o = 0; o < outputs; ++o) {
                const double exact = want[size(p * outputs + o)];
                sizes[size(o)] = std::max(sizes[size(o)], std::abs(exact));
                errors[size(o)] = std::max(errors[size(o)], std::abs(value[size(o)] - exact));
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
    const double largest = *std::max_element(sizes.begin(), sizes.end());
    for (std::size_t o = 0; o < sizes.size(); ++o) {
        // a weight that is nothing but rounding has no digits of its own
        const double own = std::max(limit_.own * sizes[o], ROUNDING * largest);
        if (errors[o] > std::min(limit_.value * largest, own)) return false;
    }
    return !slopes || error_slope <= limit_.slope * largest_slope;
}

// Tables of the groups behind those that are there.
template <typename T>
void PolynomialTable<T>::upload(const std::vector<std::int32_t>& groups,
                                const DeviceStream& stream) {
    const std::int64_t width = row_items(), old_rows = std::max(rows_, ZERO_ROWS);
    std::int64_t rows = old_rows;
    for (const std::int32_t group : groups) rows += choices_.at(group).intervals;
    auto memory = std::make_unique<DeviceMemory>(stream.device());
    memory->reserve(size(rows * width) * sizeof(T));
    T* const data = memory->template as<T>();
    if (rows_ > 0)
        copy_on_device(data, data_->data(), size(rows_ * width) * sizeof(T), stream);
    else
        clear_on_device(data, size(ZERO_ROWS * width) * sizeof(T), stream);
    const int count = degree_ + 1, outputs = spec_.layers.back().out;
    const int plain = count - TABLE_SINGLES<T>;
    std::int64_t row = old_rows;
    for (const std::int32_t group : groups) {
        poll_interrupt();
        const auto [intervals, spline] = choices_.at(group);
        const auto [receiver, sender] = groups_->representative(group);
        const std::vector<double> powers =
            spline ? fit_spline(receiver, sender) : project(receiver, sender, intervals);
        std::vector<T> table(size(intervals * width), T(0));
        const auto item = [&](std::int64_t interval, int number, int o) {
            const std::int64_t column = number / 2 * columns_.width + columns_.columns[size(o)];
            return table.data() + interval * width + 2 * column + number % 2;
        };
        for (std::int64_t i = 0; i < intervals; ++i)
            for (int k = 0; k < count; ++k)
                for (int o = 0; o < outputs; ++o) {
                    const double power = powers[size((i * count + k) * outputs + o)];
                    if (k < plain) {
                        *item(i, k, o) = static_cast<T>(power);
                        continue;
                    }
                    const auto single = static_cast<float>(power);
                    const int behind = k - plain;
                    std::memcpy(reinterpret_cast<char*>(item(i, plain + behind / 2, o)) +
                                    behind % 2 * static_cast<int>(sizeof single),
                                &single, sizeof single);
                }
        copy_to_device(data + row * width, table.data(), table.size() * sizeof(T), stream);
        stream.synchronize();
        row += intervals;
    }
    stream.synchronize();
    // last: everything above may run out of memory
    row = old_rows;
    for (const std::int32_t group : groups) {
        const int intervals = choices_.at(group).intervals;
        groups_->add({group}, row, intervals);
        row += intervals;
    }
    data_ = std::move(memory);
    rows_ = rows;
}

template <typename T>
void PolynomialTable<T>::upload_places(const DeviceStream& stream) {
    std::vector<TableEntry> entries;  // [types of receivers][types of senders]
    for (int i = 0; i < spec_.num_types; ++i)
        for (int j = 0; j < spec_.num_types; ++j) {
            const TableGroups::Place place = groups_->place(i, j);
            const auto found = choices_.find(place.group);
            const bool built = place.first_row >= 0 && found != choices_.end();
            const int intervals = built ? found->second.intervals : 0;
            entries.push_back({place.first, intervals / span(i, j), place.first_row, intervals});
        }
    if (!places_) places_ = std::make_unique<DeviceMemory>(stream.device());
    places_->reserve(entries.size() * sizeof(TableEntry));
    places_->upload(entries.data(), entries.size() * sizeof(TableEntry), stream);
    stream.synchronize();
}

template class PolynomialTable<float>;
template class PolynomialTable<double>;

}  // namespace mdcg
