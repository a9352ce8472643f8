// Tables of weights on a device, one polynomial per interval: what kernels read that make the
// weights of their edges themselves.
#pragma once

#include <cstddef>
#include <cstdint>
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

// The splines of RadialTable, in powers of the place t in [0, 1] inside an interval. Row i of a
// pair's table is interval i; for column c of row i,
//     value = a0 + t (a1 + t (a2 + t a3)),  a = data()[(i * columns() + c) * 4 + 0 .. 3],
// and the derivative by the length is (a1 + t (2 a2 + 3 t a3)) * inverse_step / (2 sqrt(r)).
// Row 0 is zeros, for edges not shorter than the r_max of their types; a length before the first
// interval is not in the table.
template <typename T>
class SplineTable {
public:
    // `spec.knots` intervals; columns that no weight stands at are zeros.
    SplineTable(const RadialSpec& spec, WeightColumns columns);

    // Before the first evaluation of a list: builds what its pairs of types need and is not there
    // yet; synchronizes where it does, and addresses change. Returns whether it did.
    bool take_list(const DeviceEdges& graph, const DeviceStream& stream);

    // On the device, after the first list.
    const T* data() const { return data_ ? data_->template as<const T>() : nullptr; }
    const TableEntry* places() const {  // [types of receivers][types of senders]
        return places_ ? places_->template as<const TableEntry>() : nullptr;
    }
    std::int64_t rows() const { return rows_; }
    std::int64_t columns() const { return columns_.width; }
    int knots() const { return spline_.rows() - 3; }
    std::size_t bytes() const {
        return (data_ ? data_->bytes() : 0) + (places_ ? places_->bytes() : 0);
    }

private:
    void build(const std::vector<std::int32_t>& groups, const DeviceStream& stream);
    void fill(int receiver, int sender, T* table) const;
    void upload_places(const DeviceStream& stream);

    RadialSpline spline_;
    WeightColumns columns_;
    TableGroups groups_;
    int num_types_;
    std::unique_ptr<DeviceMemory> data_, places_;
    std::int64_t rows_ = 0;
};

}  // namespace mdcg
