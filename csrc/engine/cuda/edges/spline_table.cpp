#include "engine/cuda/edges/spline_table.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/integers.hpp"
#include "core/interrupt.hpp"
#include "core/threads.hpp"
#include "engine/backend/cpu/parallel.hpp"

namespace mdcg {

namespace {

constexpr std::int64_t ZERO_ROWS = 1;
constexpr int FITTED = 128;  // columns at a time

}  // namespace

template <typename T>
SplineTable<T>::SplineTable(const RadialSpec& spec, WeightColumns columns)
    : spline_(spec, spec.knots, 3),
      columns_(std::move(columns)),
      groups_(spec, spline_, 4.0 * static_cast<double>(columns_.width) * spec.knots * sizeof(T)),
      num_types_(spec.num_types) {}

template <typename T>
bool SplineTable<T>::take_list(const DeviceEdges& graph, const DeviceStream& stream) {
    if (data_ && groups_.complete()) return false;
    std::vector<std::int32_t> types(size(num_types_));  // one node of each
    std::iota(types.begin(), types.end(), 0);
    const TypePairs& pairs = graph.pairs;
    const std::vector<std::int32_t> missing =
        groups_.missing(types.data(), pairs.receiver.data(), pairs.sender.data(),
                        static_cast<std::int64_t>(pairs.receiver.size()), num_types_);
    if (data_ && missing.empty()) return false;
    if (groups_.built() == 0) rows_ = 0;  // forgotten
    build(missing, stream);
    return true;
}

template <typename T>
void SplineTable<T>::build(const std::vector<std::int32_t>& groups, const DeviceStream& stream) {
    const std::int64_t width = 4 * columns_.width, old_rows = std::max(rows_, ZERO_ROWS);
    const std::int64_t rows = old_rows + static_cast<std::int64_t>(groups.size()) * knots();
    auto memory = std::make_unique<DeviceMemory>(stream.device());
    memory->reserve(size(rows * width) * sizeof(T));
    T* const data = memory->template as<T>();
    if (rows_ > 0)
        copy_on_device(data, data_->data(), size(rows_ * width) * sizeof(T), stream);
    else
        clear_on_device(data, size(ZERO_ROWS * width) * sizeof(T), stream);
    AlignedArray<T> table(size(groups.empty() ? 0 : knots() * width));
    std::int64_t row = old_rows;
    for (const std::int32_t group : groups) {
        const auto [receiver, sender] = groups_.representative(group);
        fill(receiver, sender, table.data());
        copy_to_device(data + row * width, table.data(), size(knots() * width) * sizeof(T), stream);
        stream.synchronize();
        row += knots();
    }
    stream.synchronize();
    groups_.add(groups, old_rows, knots());
    data_ = std::move(memory);
    rows_ = rows;
    upload_places(stream);
}

// [knots()][columns()][4] of a pair of types.
template <typename T>
void SplineTable<T>::fill(int receiver, int sender, T* table) const {
    poll_interrupt();
    spline_.prepare(receiver, sender);
    const int outputs = static_cast<int>(columns_.columns.size());
    FirstError error;
    const auto block = [&](std::int64_t number) {
        const int start = static_cast<int>(number) * FITTED;
        const int count = std::min(FITTED, outputs - start);
        std::vector<double> fitted(size(spline_.rows() * count));
        spline_.fit(receiver, sender, start, count, fitted.data());
        for (int i = 0; i < knots(); ++i) {
            T* const row = table + 4 * columns_.width * i;
            const double* c0 = fitted.data() + std::ptrdiff_t(i) * count;
            const double *c1 = c0 + count, *c2 = c1 + count, *c3 = c2 + count;
            for (int k = 0; k < count; ++k) {
                T* const a = row + 4 * columns_.columns[size(start + k)];
                a[0] = static_cast<T>((c0[k] + 4 * c1[k] + c2[k]) / 6);
                a[1] = static_cast<T>((c2[k] - c0[k]) / 2);
                a[2] = static_cast<T>((c0[k] - 2 * c1[k] + c2[k]) / 2);
                a[3] = static_cast<T>((c3[k] - 3 * c2[k] + 3 * c1[k] - c0[k]) / 6);
            }
        }
    };
    share_in_turns(usable_threads(0), (outputs + FITTED - 1) / FITTED, 1,
                   [&](std::int64_t number, int) {
                       try {
                           block(number);
                       } catch (...) {
                           error.keep();
                       }
                   });
    error.rethrow();
}

template <typename T>
void SplineTable<T>::upload_places(const DeviceStream& stream) {
    const std::vector<TableEntry> places = table_places(groups_, num_types_);
    if (!places_) places_ = std::make_unique<DeviceMemory>(stream.device());
    places_->reserve(places.size() * sizeof(TableEntry));
    places_->upload(places.data(), places.size() * sizeof(TableEntry), stream);
    stream.synchronize();
}

template class SplineTable<float>;
template class SplineTable<double>;

}  // namespace mdcg
