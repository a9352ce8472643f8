// Tables of weights on a device in double precision, so fine that they are the network.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/edges/spline_table.hpp"

namespace mdcg {

// Largest error of a table, relative to the largest weight and to the largest derivative of a
// weight.
struct TableError {
    double value = 0, slope = 0;
};

// Polynomials of an odd degree in z in [-1, 1], the place in an interval counted from its middle;
// intervals as SplineTable has them. Item
//     data()[((row * half + k) * columns() + c) * 2 + i],  half = (degree + 1) / 2,
// is the factor of z^(2 k + i) in column c of a row. Row 0 is zeros. As few intervals, the same for
// all pairs of types, as errors need; they are measured when a table is built.
class PolynomialTable {
public:
    // Errors allowed, relative to the largest value and the largest derivative of a pair of types:
    // the latter is what rounding of the values leaves.
    static constexpr double VALUE_ERROR = 1e-13, SLOPE_ERROR = 5e-11;
    static constexpr int FEWEST = 64, MOST = 512;  // intervals

    // `spec` has no rows of nodes; columns that no weight stands at are zeros.
    PolynomialTable(const RadialSpec& spec, WeightColumns columns, int degree);

    // Before the first evaluation of a list: builds what its pairs of types need and is not there
    // yet; synchronizes where it does, and addresses and knots() change.
    void take_list(const DeviceEdges& graph, const DeviceStream& stream);

    // After a list: false where MOST intervals are too few for a pair of types of it, or of one
    // before. There is no table then.
    bool available() const { return available_; }

    const double* data() const { return data_ ? data_->template as<const double>() : nullptr; }
    const TableEntry* places() const {  // [types of receivers][types of senders]
        return places_ ? places_->template as<const TableEntry>() : nullptr;
    }
    int degree() const { return degree_; }
    int knots() const { return knots_; }
    std::int64_t rows() const { return rows_; }
    std::int64_t columns() const { return columns_.width; }
    TableError error() const { return error_; }  // the largest

private:
    std::int64_t row_items() const { return (degree_ + 1) * columns_.width; }
    void start(int knots);
    // Powers of z, [knots][degree + 1][outputs].
    std::vector<double> fit(std::int32_t group) const;
    TableError measure(std::int32_t group, const std::vector<double>& powers) const;
    void build(const std::vector<std::int32_t>& groups, const DeviceStream& stream);
    void upload(std::vector<std::int32_t> groups, const DeviceStream& stream);
    void upload_places(const DeviceStream& stream);

    RadialSpec spec_;
    WeightColumns columns_;
    std::vector<double> last_;  // [units][outputs]
    int degree_, knots_ = 0;
    bool available_ = true;
    TableError error_;
    std::unique_ptr<RadialSpline> units_, weights_;  // of hidden units, of weights
    std::unique_ptr<TableGroups> groups_;
    std::vector<std::int32_t> built_;
    std::unique_ptr<DeviceMemory> data_, places_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
