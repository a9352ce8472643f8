#include "engine/cuda/edges/polynomial_table.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/integers.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {
constexpr std::int64_t ZEROED_ROWS = 1;
}

template <typename T>
PolynomialTable<T>::PolynomialTable(std::string layer, const RadialSpec& spec,
                                    WeightColumns columns, TableContent content, int degree,
                                    TableLimit limit)
    : layer_(std::move(layer)),
      num_types_(spec.num_types),
      degree_(degree),
      columns_(std::move(columns)),
      tables_(spec, RadialFit(spec, FitKind::kPolynomials, degree, limit, TABLE_SINGLES<T>),
              content, static_cast<double>(row_items()) * sizeof(T) / (degree + 1)) {
    if (!possible(degree))
        throw std::invalid_argument("no tables have polynomials of degree " +
                                    std::to_string(degree));
}

template <typename T>
void PolynomialTable<T>::on_new_list(const DeviceEdges& graph, const DeviceStream& stream) {
    if (data_ && tables_.complete()) return;
    std::vector<std::int32_t> types(size(num_types_));  // one node of each type
    std::iota(types.begin(), types.end(), 0);
    const TypePairs& pairs = graph.pairs;
    const std::vector<int> missing =
        tables_.missing(types.data(), pairs.receiver.data(), pairs.sender.data(),
                        static_cast<std::int64_t>(pairs.receiver.size()), num_types_);
    if (!tables_.available())
        throw EngineError(ErrorKind::unsupported,
                          layer_ +
                              ": its radial network varies too fast with the length for a table, "
                              "which GPUs need: use device cpu");
    if (data_ && missing.empty()) return;
    if (tables_.built() == 0) rows_ = 0;  // all were dropped
    upload(missing, stream);
    upload_places(stream);
}

// Appends tables to the existing ones.
template <typename T>
void PolynomialTable<T>::upload(const std::vector<int>& tables, const DeviceStream& stream) {
    const std::int64_t width = row_items(), old_rows = std::max(rows_, ZEROED_ROWS);
    std::int64_t rows = old_rows;
    for (const int table : tables) rows += tables_.intervals(table);
    auto memory = std::make_unique<DeviceMemory>(stream.device());
    memory->reserve(size(rows * width) * sizeof(T));
    T* const data = memory->template as<T>();
    if (rows_ > 0)
        copy_on_device(data, data_->data(), size(rows_ * width) * sizeof(T), stream);
    else
        clear_on_device(data, size(ZEROED_ROWS * width) * sizeof(T), stream);
    const int count = degree_ + 1, plain = count - TABLE_SINGLES<T>;
    std::int64_t row = old_rows;
    for (const int number : tables) {
        const int intervals = tables_.intervals(number);
        std::vector<T> table(size(intervals * width), T(0));
        const auto item = [&](std::int64_t interval, int item_of_column, int output) {
            const std::int64_t column =
                item_of_column / 2 * columns_.width + columns_.columns[size(output)];
            return table.data() + interval * width + 2 * column + item_of_column % 2;
        };
        const auto store = [&](std::int64_t i, int k, int output, double power) {
            if (k < plain) {
                *item(i, k, output) = static_cast<T>(power);
                return;
            }
            const auto single = static_cast<float>(power);
            const int behind = k - plain;
            std::memcpy(reinterpret_cast<char*>(item(i, plain + behind / 2, output)) +
                            behind % 2 * static_cast<int>(sizeof single),
                        &single, sizeof single);
        };
        tables_.write(number, [&](int first, int columns, const double* from, std::int64_t stride) {
            for (std::int64_t i = 0; i < intervals; ++i)
                for (int k = 0; k < count; ++k)
                    for (int c = 0; c < columns; ++c)
                        store(i, k, first + c, from[(i * count + k) * stride + c]);
        });
        copy_to_device(data + row * width, table.data(), table.size() * sizeof(T), stream);
        stream.synchronize();
        row += intervals;
    }
    stream.synchronize();
    // last: everything above may run out of memory
    row = old_rows;
    for (const int table : tables) {
        tables_.set_built(table, row);
        row += tables_.intervals(table);
    }
    data_ = std::move(memory);
    rows_ = rows;
}

template <typename T>
void PolynomialTable<T>::upload_places(const DeviceStream& stream) {
    std::vector<TableEntry> entries;  // [types of receivers][types of senders]
    for (int i = 0; i < num_types_; ++i)
        for (int j = 0; j < num_types_; ++j) {
            const TablePlace& place = tables_.place(i, j);
            const int intervals = place.first_row >= 0 ? place.intervals : 0;
            const double offset = 0.0 - place.first * place.inverse_step;
            entries.push_back({place.inverse_step, offset, place.first_row, intervals});
        }
    places_.upload(entries, stream);
}

template class PolynomialTable<float>;
template class PolynomialTable<double>;

}  // namespace mdcg
