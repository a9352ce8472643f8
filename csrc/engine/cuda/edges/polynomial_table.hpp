// Tables of weights on a device, for kernels that make the weights of their edges themselves.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/edges/radial_table.hpp"
#include "kernels/table_entry.hpp"

namespace mdcg {

// What a table may differ by from the network, relative to the largest weight and to the largest
// derivative of a weight of a pair of types; how many intervals are tried first; and what each
// weight may differ by relative to its own largest value, because layers behind the convolution can
// make a small weight as important as a large one.
struct TableLimit {
    double value, slope;
    int fewest;
    double own = 1;
};

// A polynomial of an odd degree for each interval of the square root of the length, in z in
// [-1, 1], the place in the interval counted from its middle. Column c of the `width` columns of a
// row has table_items<T>(degree) items. Item n = 2 k + i stands at
//     data()[((row * half + k) * width + c) * 2 + i],  half = table_items<T>(degree) / 2,
// and is the coefficient of z^n. In double precision the last two items hold two floats each, the
// lower power first. The derivative by the length is that by z times inverse_step / sqrt(r). Row 0
// is zeros, for edges not shorter than the r_max of their types; a length before the first interval
// is not in the table.
template <typename T>
class PolynomialTable {
public:
    static constexpr int SPLINE_DEGREE = 3;
    // In double precision, where the table replaces the network. The limit of derivatives is wider:
    // their rounding grows with the number of intervals.
    static constexpr TableLimit kDoubleTolerance{1e-13, 1e-11, 81};
    static constexpr int EXACT_DEGREE = 7;
    // For tables without derivatives. In single precision it is well below the rounding of values,
    // 6e-8; a small weight may differ by two such roundings.
    static constexpr TableLimit kValueTolerance{
        sizeof(T) == 8 ? kDoubleTolerance.value : 1e-8, std::numeric_limits<double>::infinity(),
        sizeof(T) == 8 ? 36 : 16, sizeof(T) == 8 ? kDoubleTolerance.own : 1.2e-7};
    static constexpr int kMaxIntervals = 600;  // intervals

    // Whether there are tables of that degree.
    static bool possible(int degree) {
        return degree >= SPLINE_DEGREE + TABLE_SINGLES<T> / 2 && degree % 2 == 1;
    }

    // `spec` has no rows of nodes; columns that no weight stands at are zeros. The table is the
    // spline of degree 3 (RadialSpline) for spec.knots.
    PolynomialTable(const RadialSpec& spec, WeightColumns columns);
    // Each pair of types has as few intervals as the limit allows, which is measured when its table
    // is built. Where kMaxIntervals are too few, the table of a pair is the spline in single
    // precision; in double precision there is none.
    PolynomialTable(const RadialSpec& spec, WeightColumns columns, int degree, TableLimit limit);

    // Before the first evaluation of a list: builds what its pairs of types need and is not there
    // yet; synchronizes where it does, and addresses change.
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream);

    // After a list: false where a pair of types of it can have no table.
    bool available() const { return available_; }

    const T* data() const { return data_ ? data_->template as<const T>() : nullptr; }
    const TableEntry* places() const {  // [types of receivers][types of senders]
        return places_ ? places_->template as<const TableEntry>() : nullptr;
    }
    int degree() const { return degree_; }

private:
    struct Choice {
        int intervals;
        bool spline;
    };
    std::int64_t row_items() const { return table_items<T>(degree_) * columns_.width; }
    double span(int receiver, int sender) const;  // of a table, in square roots of lengths
    std::vector<std::int32_t> missing(const TypePairs& pairs);
    bool choose(const std::vector<std::int32_t>& groups);
    Choice choice(int receiver, int sender) const;
    // Powers of z, [intervals][degree + 1][outputs].
    std::vector<double> fit_spline(int receiver, int sender) const;
    std::vector<double> project(int receiver, int sender, int intervals) const;
    bool within_limit(int receiver, int sender, int intervals) const;
    void upload(const std::vector<std::int32_t>& groups, const DeviceStream& stream);
    void upload_places(const DeviceStream& stream);

    RadialSpec spec_;
    WeightColumns columns_;
    std::vector<double> last_;  // [units][outputs]
    int degree_;
    bool spline_;
    TableLimit limit_{};
    bool available_ = true;
    std::unique_ptr<RadialSpline> weights_, units_;  // of weights, of hidden units
    std::unique_ptr<TableGroups> groups_;
    std::map<std::int32_t, Choice> choices_;  // of groups; they stay, whatever is built
    int largest_ = 0;                         // number of intervals among them
    std::unique_ptr<DeviceMemory> data_, places_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
