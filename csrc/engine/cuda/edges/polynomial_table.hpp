// Tables of weights on a device: what kernels read that make the weights of their edges themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/edges/radial_table.hpp"
#include "kernels/table_entry.hpp"

namespace mdcg {

// [types of receivers][types of senders], of a RadialTable or TableGroups.
template <typename Table>
std::vector<TableEntry> table_places(const Table& table, int num_types) {
    std::vector<TableEntry> places;
    for (int i = 0; i < num_types; ++i)
        for (int j = 0; j < num_types; ++j) {
            const auto place = table.place(i, j);
            places.push_back({place.first, place.inverse_step, place.first_row});
        }
    return places;
}

// Largest errors of a table, relative to the largest weight and to the largest derivative of a
// weight of a pair of types.
struct TableError {
    double value, slope;
};

// A polynomial of an odd degree for each interval of the square root of the length, in z in
// [-1, 1], the place in the interval counted from its middle. Item
//     data()[((row * half + k) * columns() + c) * 2 + i],  half = (degree + 1) / 2,
// is the factor of z^(2 k + i) in column c of a row; the derivative by the length is that by z
// times inverse_step / sqrt(r). Row 0 is zeros, for edges not shorter than the r_max of their
// types; a length before the first interval is not in the table.
template <typename T>
class PolynomialTable {
public:
    // In double precision, where a table stands for the network itself: what rounding of the values
    // leaves of their derivatives.
    static constexpr TableError EXACT{1e-13, 5e-11};
    // For values alone, in single precision: far below rounding.
    static constexpr TableError VALUES{1e-8, std::numeric_limits<double>::infinity()};
    static constexpr int FEWEST = 16, MOST = 600;  // intervals

    // `spec` has no rows of nodes; columns that no weight stands at are zeros. The table is the
    // spline of degree 3 with spec.knots intervals.
    PolynomialTable(const RadialSpec& spec, WeightColumns columns);
    // As few intervals, the same for all pairs of types, as errors allow. They are measured when a
    // table is built.
    PolynomialTable(const RadialSpec& spec, WeightColumns columns, int degree, TableError allowed);

    // Before the first evaluation of a list: builds what its pairs of types need and is not there
    // yet; synchronizes where it does, and addresses and intervals() change.
    void take_list(const DeviceEdges& graph, const DeviceStream& stream);

    // After a list: false where MOST intervals are too few for a pair of types of it, or of one
    // before. There is no table then.
    bool available() const { return available_; }

    const T* data() const { return data_ ? data_->template as<const T>() : nullptr; }
    const TableEntry* places() const {  // [types of receivers][types of senders]
        return places_ ? places_->template as<const TableEntry>() : nullptr;
    }
    int degree() const { return degree_; }
    int intervals() const { return intervals_; }
    std::int64_t rows() const { return rows_; }
    std::int64_t columns() const { return columns_.width; }

private:
    std::int64_t row_items() const { return (degree_ + 1) * columns_.width; }
    void start(int intervals);
    // Powers of z, [intervals][degree + 1][outputs].
    std::vector<double> fit(std::int32_t group) const;
    std::vector<double> fit_spline(int receiver, int sender) const;
    std::vector<double> project(int receiver, int sender) const;
    TableError measure(std::int32_t group, const std::vector<double>& powers) const;
    void build(const std::vector<std::int32_t>& groups, const DeviceStream& stream);
    void upload(std::vector<std::int32_t> groups, const DeviceStream& stream);
    void upload_places(const DeviceStream& stream);

    RadialSpec spec_;
    WeightColumns columns_;
    std::vector<double> last_;  // [units][outputs]
    int degree_, intervals_ = 0;
    bool spline_;
    TableError allowed_{};
    bool available_ = true;
    std::unique_ptr<RadialSpline> units_, weights_;  // of hidden units, of weights
    std::unique_ptr<TableGroups> groups_;
    std::vector<std::int32_t> built_;
    std::unique_ptr<DeviceMemory> data_, places_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
