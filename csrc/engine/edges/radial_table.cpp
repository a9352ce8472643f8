#include "engine/edges/radial_table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/integers.hpp"
#include "engine/backend/cpu/simd.hpp"

namespace mdcg {

namespace {

// The first rows are zeros, for edges that have no weights.
template <typename T>
constexpr std::int64_t ZERO_ROWS = TABLE_STEPS<T> + 1;

}  // namespace

template <typename T>
RadialTable<T>::RadialTable(const RadialSpec& spec, WeightColumns columns, TableContent content)
    : columns_(std::move(columns)),
      tables_(spec,
              RadialFit(spec, FitKind::kSpline, TABLE_STEPS<T>,
                        SINGLE ? kSplineTolerance : kDoubleTolerance),
              content, static_cast<double>(columns_.width) * sizeof(T) * (SINGLE ? 2 : 1)) {}

template <typename T>
bool RadialTable<T>::require(const std::int32_t* types, const std::int32_t* receiver,
                             const std::int32_t* sender, std::int64_t edges, std::int64_t nodes) {
    const std::vector<int> missing = tables_.missing(types, receiver, sender, edges, nodes);
    if (missing.empty()) return tables_.available();
    if (tables_.built() == 0) {  // all were dropped
        data_.resize(0);
        steps_.resize(0);
        rows_ = 0;
    }
    build(missing);
    return true;
}

template <typename T>
void RadialTable<T>::build(const std::vector<int>& tables) {
    constexpr int panel = row_align<T>();
    const std::int64_t old_rows = std::max(rows_, ZERO_ROWS<T>);
    const std::int64_t panels = columns_.width / panel;
    std::int64_t rows = old_rows;
    for (const int table : tables) rows += tables_.num_rows(table);
    const std::size_t items = size(columns_.width * rows);
    AlignedArray<T> data(items), steps(SINGLE ? items : 0);
    for (std::int64_t p = 0; p < panels && rows_ > 0; ++p) {
        std::copy_n(data_.data() + p * rows_ * panel, rows_ * panel,
                    data.data() + p * rows * panel);
        if constexpr (SINGLE)
            std::copy_n(steps_.data() + p * rows_ * panel, rows_ * panel,
                        steps.data() + p * rows * panel);
    }
    std::int64_t row = old_rows;
    for (const int table : tables) {
        const int count = tables_.num_rows(table);
        tables_.write(table, [&](int first, int columns, const double* from, std::int64_t stride) {
            for (int k = 0; k < columns; ++k) {
                const std::int64_t column = columns_.columns[size(first + k)];
                const std::int64_t to = (column / panel * rows + row) * panel + column % panel;
                for (int i = 0; i < count; ++i) {
                    const double* const c = from + i * stride + k;
                    const auto at = size(to + std::int64_t(i) * panel);
                    data[at] = static_cast<T>(c[0]);
                    if (SINGLE && i + 1 < count) steps[at] = static_cast<T>(c[stride] - c[0]);
                }
            }
        });
        row += count;
    }
    // last: everything above may run out of memory
    row = old_rows;
    for (const int table : tables) {
        tables_.set_built(table, row);
        row += tables_.num_rows(table);
    }
    data_ = std::move(data);
    steps_ = std::move(steps);
    rows_ = rows;
}

template <typename T>
bool RadialTable<T>::look_up(const RadialEdges& edges, std::int32_t* knot, T* basis,
                             T* slope) const {
    constexpr std::int64_t AT_ONCE = 64;
    const std::int64_t n = edges.capacity;
    bool all = true;
    for (std::int64_t first = 0; first < n; first += AT_ONCE) {
        const std::int64_t count = std::min(AT_ONCE, n - first);
        double place[AT_ONCE] = {}, within[AT_ONCE] = {}, by_length[AT_ONCE] = {};
        std::fill_n(knot + first, count, 0);
        for (std::int64_t i = 0; i < std::min(count, edges.count - first); ++i) {
            const std::int64_t e = first + i;
            const TablePlace& pair = tables_.place(edges.receiver_type[e], edges.sender_type[e]);
            const double root = std::sqrt(edges.length[e]);
            const double from_first = (root - pair.first) * pair.inverse_step;
            all = all && from_first >= 0;
            if (!(edges.length[e] < pair.r_max)) continue;
            const int interval =
                std::min(pair.intervals - 1, static_cast<int>(std::max(0.0, from_first)));
            knot[e] = pair.first_row + interval + (interval >= pair.kink ? TABLE_STEPS<T> : 0);
            place[i] = from_first - interval;
            within[i] = 1;
            by_length[i] = pair.inverse_step / (2 * root);
        }
        // sum_j b[j] c[j] = c[0] + sum_j (b[j + 1] + .. + b[degree]) (c[j + 1] - c[j]), because the
        // b sum to one. The derivative is a spline of the differences, of one degree less.
        simd<T>().splines(count, place, within, by_length, n, basis + first, slope + first);
    }
    return all;
}

template class RadialTable<float>;
template class RadialTable<double>;

}  // namespace mdcg
