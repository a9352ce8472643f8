#include "engine/edges/edge_block.hpp"

#include <algorithm>
#include <cmath>

#include "core/integers.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {
constexpr double BEYOND_CUTOFFS = 2 * limits::MAX_LENGTH;
}

template <typename T>
void EdgeBlock<T>::gather(const Graph& graph, const std::int32_t* types, const std::int32_t* list,
                          std::int64_t first, std::int64_t n, bool flip) {
    count = n;
    const double sign = flip ? -1.0 : 1.0;
    for (std::int64_t i = 0; i < n; ++i) {
        const std::int32_t e = list != nullptr ? list[i] : narrow(first + i);
        const auto at = size(e);
        edge[i] = e;
        sender[i] = graph.sender[at];
        receiver[i] = graph.receiver[at];
        sender_type[i] = types[sender[i]];
        receiver_type[i] = types[receiver[i]];
        const double* v = graph.vec.data() + 3 * at;
        // atoms at the same position have no direction
        const double r = std::max(std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 1e-8);
        length[i] = r;
        const double inverse = sign / r;
        for (int k = 0; k < 3; ++k) unit[k * capacity + i] = static_cast<T>(v[k] * inverse);
    }
    std::fill(length + n, length + capacity, BEYOND_CUTOFFS);
    for (int k = 0; k < 3; ++k) std::fill(unit + k * capacity + n, unit + (k + 1) * capacity, T(0));
    std::fill(d_length, d_length + capacity, 0.0);
}

template <typename T>
void EdgeBlock<T>::scatter(const T* d_unit, bool flip, T* edge_gradient) const {
    for (std::int64_t i = 0; i < count; ++i) {
        const double u[3] = {unit[i], unit[capacity + i], unit[2 * capacity + i]};
        double along = d_length[i], inverse = 0;
        double d[3] = {0, 0, 0};
        if (d_unit != nullptr) {
            for (int k = 0; k < 3; ++k) d[k] = d_unit[k * capacity + i];
            inverse = 1.0 / length[i];
            along -= (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
        }
        T* to = edge_gradient + 3 * static_cast<std::ptrdiff_t>(edge[i]);
        for (int k = 0; k < 3; ++k) {
            const double g = along * u[k] + d[k] * inverse;
            to[k] += static_cast<T>(flip ? -g : g);
        }
    }
}

template struct EdgeBlock<float>;
template struct EdgeBlock<double>;

}  // namespace mdcg
