#include "core/pairs.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// The two edges of a pair agree up to the last digits, which differ where the remainder of a vector
// loop is computed by scalar code.
constexpr int DIRECTION_ULPS = 16;
constexpr int FEATURE_ULPS = 64;

template <typename T>
bool opposite(const EdgeValues<T>& values, std::int64_t a, std::int64_t b) {
    const T* x = values.directions + a * values.direction_stride;
    const T* y = values.directions + b * values.direction_stride;
    constexpr T eps = std::numeric_limits<T>::epsilon();
    T size = 0, error = 0;
    for (int c = 0; c < 3; ++c) {
        size = std::max(size, std::abs(x[c]));
        error = std::max(error, std::abs(x[c] + y[c]));
    }
    // a zero vector does not tell periodic images apart; NaN compares as false
    return size > 0 && error <= DIRECTION_ULPS * eps * size;
}

template <typename T>
bool equal_features(const EdgeValues<T>& values, std::int64_t a, std::int64_t b) {
    const T* x = values.features + a * values.num_features;
    const T* y = values.features + b * values.num_features;
    constexpr T eps = std::numeric_limits<T>::epsilon();
    T size = 0, error = 0;
    bool numbers = true;
    for (std::int64_t c = 0; c < values.num_features; ++c) {
        size = std::max(size, std::abs(x[c]));
        error = std::max(error, std::abs(x[c] - y[c]));
        numbers = numbers && x[c] == x[c] && y[c] == y[c];
    }
    return numbers && error <= FEATURE_ULPS * eps * size;
}

template <typename T>
bool matches(const EdgeValues<T>& values, std::int64_t a, std::int64_t b) {
    return opposite(values, a, b) && equal_features(values, a, b);
}

// Sorts edges by receiver, then by sender, stably. Returns the position where each receiver begins.
std::vector<std::int64_t> sort_edges(const EdgeList& edges, std::vector<std::int32_t>& sorted) {
    const std::size_t n = edges.sender.size();
    const auto nodes = size(edges.num_receivers);
    std::vector<std::int32_t> by_sender(n);
    sorted.resize(n);
    std::vector<std::int64_t> ptr(nodes + 1);
    const auto fill = [&](const std::vector<std::int32_t>& keys, const std::int32_t* from,
                          std::int32_t* to) {
        std::fill(ptr.begin(), ptr.end(), 0);
        for (const std::int32_t key : keys) ++ptr[size(key) + 1];
        for (std::size_t i = 1; i <= nodes; ++i) ptr[i] += ptr[i - 1];
        std::vector<std::int64_t> next(ptr.begin(), ptr.end() - 1);
        for (std::size_t i = 0; i < n; ++i) {
            const std::int32_t e = from ? from[i] : narrow(i);
            to[next[size(keys[size(e)])]++] = e;
        }
    };
    fill(edges.sender, nullptr, by_sender.data());
    fill(edges.receiver, by_sender.data(), sorted.data());
    return ptr;
}

}  // namespace

template <typename T>
Pairing match_pairs(const EdgeList& edges, const EdgeValues<T>& values) {
    const std::int32_t *const senders = edges.sender.data(), *const receivers =
                                                                 edges.receiver.data();
    std::vector<std::int32_t> sorted;
    const std::vector<std::int64_t> ptr = sort_edges(edges, sorted);
    Pairing out;
    out.row.assign(edges.sender.size(), -1);
    for (const std::int32_t e : sorted) {
        auto& row = out.row[size(e)];
        if (row >= 0) continue;
        row = narrow(out.first.size());
        out.first.push_back(e);
        const auto back = size(senders[e]);
        const auto begin = sorted.begin() + ptr[back], end = sorted.begin() + ptr[back + 1];
        auto at = std::lower_bound(
            begin, end, receivers[e],
            [&](std::int32_t other, std::int32_t sender) { return senders[other] < sender; });
        std::int64_t partner = e;
        for (; at != end && senders[*at] == receivers[e]; ++at) {
            auto& other = out.row[size(*at)];
            if (other < 0 && matches(values, e, *at)) {
                other = row;
                partner = *at;
                break;
            }
        }
        out.second.push_back(partner);
    }
    return out;
}

template <typename T>
bool still_pairs(const Pairing& pairing, const EdgeValues<T>& values) {
    for (std::size_t r = 0; r < pairing.first.size(); ++r)
        if (pairing.first[r] != pairing.second[r] &&
            !matches(values, pairing.first[r], pairing.second[r]))
            return false;
    return true;
}

PairOrder order_by_pair(const EdgeList& edges, const Pairing& pairing, std::int64_t block_size) {
    const std::int32_t *const senders = edges.sender.data(), *const receivers =
                                                                 edges.receiver.data();
    const std::int64_t num_blocks =
        std::max<std::int64_t>(1, (edges.num_receivers + block_size - 1) / block_size);
    // (round and tile, row): blocks a and b meet in round (a + b) mod num_blocks, in which each
    // block meets one other
    std::vector<std::pair<std::int64_t, std::int32_t>> keys(pairing.first.size());
    for (std::size_t r = 0; r < keys.size(); ++r) {
        const std::int64_t e = pairing.first[r];
        const std::int64_t a = senders[e] / block_size, b = receivers[e] / block_size;
        keys[r] = {(a + b) % num_blocks * num_blocks + std::min(a, b), narrow(r)};
    }
    std::sort(keys.begin(), keys.end());
    PairOrder out;
    for (auto* values : {&out.order, &out.sender, &out.receiver})
        values->reserve(edges.sender.size());
    const auto append = [&](std::int64_t e) {
        out.order.push_back(narrow(e));
        out.sender.push_back(senders[e]);
        out.receiver.push_back(receivers[e]);
    };
    out.round_ptr.push_back(0);
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const auto [key, row] = keys[i];
        if (i == 0 || key != keys[i - 1].first) {
            const auto here = static_cast<std::int64_t>(out.order.size());
            if (i > 0) {
                out.tiles.push_back(here);
                if (key / num_blocks != keys[i - 1].first / num_blocks)
                    out.round_ptr.push_back(static_cast<std::int64_t>(out.tiles.size()) / 2);
            }
            out.tiles.push_back(here);
        }
        const auto r = size(row);
        append(pairing.first[r]);
        if (pairing.second[r] != pairing.first[r]) append(pairing.second[r]);
    }
    if (!keys.empty()) {
        out.tiles.push_back(static_cast<std::int64_t>(out.order.size()));
        out.round_ptr.push_back(static_cast<std::int64_t>(out.tiles.size()) / 2);
    }
    return out;
}

template bool still_pairs(const Pairing&, const EdgeValues<float>&);
template bool still_pairs(const Pairing&, const EdgeValues<double>&);
template Pairing match_pairs(const EdgeList&, const EdgeValues<float>&);
template Pairing match_pairs(const EdgeList&, const EdgeValues<double>&);

}  // namespace mdcg
