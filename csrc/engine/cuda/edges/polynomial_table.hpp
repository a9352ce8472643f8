// Tables of weights on a device, for kernels that evaluate the weights of their edges themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/edges/radial_tables.hpp"
#include "kernels/table_entry.hpp"

namespace mdcg {

// A polynomial of an odd degree for each interval of the square root of the length. Its argument z
// in [-1, 1] is the position in the interval, from the middle (see RadialFit). The first interval
// holds length 0. A row has `width` columns, each of table_items<T>(degree) items. Item n = 2 k + i
// of column c is at
//     data()[((row * half + k) * width + c) * 2 + i],  half = table_items<T>(degree) / 2,
// and is the coefficient of z^n. In double precision the last two items hold two floats each, the
// lower power first. The derivative by the length is the derivative by z times inverse_step /
// sqrt(r). Row 0 is zeros, for edges not shorter than the r_max of their types.
template <typename T>
class PolynomialTable {
public:
    static constexpr int UNITS_DEGREE = sizeof(T) == 8 ? 7 : 3;  // degree of tables of hidden units

    // Whether tables can have polynomials of this degree.
    static bool possible(int degree) {
        return degree >= 3 + TABLE_SINGLES<T> / 2 && degree % 2 == 1;
    }
    // `slopes`: whether kernels use derivatives.
    static TableLimit limit(const RadialSpec& spec, bool slopes) {
        if (sizeof(T) == 8) return slopes ? kDoubleTolerance : kDoubleValueTolerance;
        if (!slopes) return kValueTolerance;
        return spec.exact ? kTightTolerance : kSingleTolerance;
    }

    // `spec` has a table. Columns without a weight are zeros. `layer` is for errors.
    PolynomialTable(std::string layer, const RadialSpec& spec, WeightColumns columns,
                    TableContent content, int degree, TableLimit limit);

    // To be called before the first evaluation of a list: builds the tables that are missing for
    // its pairs of types. If it builds any, it synchronizes, and addresses change. Throws
    // EngineError if no table of a pair of types is exact enough.
    void on_new_list(const DeviceEdges& graph, const DeviceStream& stream);

    const T* data() const { return data_ ? data_->template as<const T>() : nullptr; }
    const TableEntry* places() const { return places_.data(); }  // [receiver type][sender type]
    int degree() const { return degree_; }

private:
    std::int64_t row_items() const { return table_items<T>(degree_) * columns_.width; }
    void upload(const std::vector<int>& tables, const DeviceStream& stream);
    void upload_places(const DeviceStream& stream);

    std::string layer_;
    int num_types_, degree_;
    WeightColumns columns_;
    RadialTables tables_;
    std::unique_ptr<DeviceMemory> data_;
    DeviceArray<TableEntry> places_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
