#include "engine/graph.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "core/text.hpp"
#include "engine/backend/cpu/parallel.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

void check_sizes(const System& system) {
    if (system.num_local < 0 || system.num_nodes < system.num_local || system.num_edges < 0)
        bad_argument("the system has " + std::to_string(system.num_local) + " local nodes, " +
                     std::to_string(system.num_nodes) + " nodes and " +
                     std::to_string(system.num_edges) +
                     " edges, expected 0 <= local nodes <= nodes and no negative number");
    if (std::max(system.num_nodes, system.num_edges) > std::numeric_limits<std::int32_t>::max())
        bad_argument("the system has " + std::to_string(system.num_nodes) + " nodes and " +
                     std::to_string(system.num_edges) +
                     " edges, expected at most 2^31 - 1 of each: split it");
}

void check_positions(const System& system) {
    for (std::int64_t i = 0; i < 3 * system.num_nodes; ++i)
        if (!std::isfinite(system.positions[i]))
            bad_argument({"the position of atom {} is " + number_text(system.positions[i]) +
                              ", expected finite numbers",
                          {i / 3}});
}

void accumulate(std::vector<std::int64_t>& counts) {
    for (std::size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
}

// Puts the low 10 bits of v at every third bit, for a Morton code.
std::uint64_t spread(std::uint64_t v) {
    std::uint64_t out = 0;
    for (int b = 0; b < 10; ++b) out |= (v >> b & 1) << (3 * b);
    return out;
}

// Sorts nodes along a space-filling curve through cells of length `cell`, stably within a cell.
void sort_nodes(const double* positions, std::int64_t begin, std::int64_t end, double cell,
                std::vector<std::int64_t>& keys, std::vector<std::int32_t>& node) {
    double low[3], high[3];
    for (int d = 0; d < 3; ++d) {
        low[d] = std::numeric_limits<double>::infinity();
        high[d] = -low[d];
    }
    for (std::int64_t n = begin; n < end; ++n)
        for (int d = 0; d < 3; ++d) {
            low[d] = std::min(low[d], positions[3 * n + d]);
            high[d] = std::max(high[d], positions[3 * n + d]);
        }
    double scale[3];
    for (int d = 0; d < 3; ++d) scale[d] = 1.0 / std::max(cell, (high[d] - low[d]) / 1023.0);
    // the position on the curve in the upper 30 bits, the node's number in the lower 32
    keys.resize(size(end - begin));
    for (std::int64_t n = begin; n < end; ++n) {
        std::uint64_t key = 0;
        for (int d = 0; d < 3; ++d) {
            const double at = (positions[3 * n + d] - low[d]) * scale[d];
            key |= spread(static_cast<std::uint64_t>(std::min(std::max(at, 0.0), 1023.0))) << d;
        }
        keys[size(n - begin)] =
            static_cast<std::int64_t>(key << 32 | static_cast<std::uint64_t>(n));
    }
    std::sort(keys.begin(), keys.end());
    for (std::int64_t n = begin; n < end; ++n)
        node[size(n)] = narrow(keys[size(n - begin)] & 0xffffffff);
}

}  // namespace

void check_range(const std::int32_t* index, std::int64_t count, std::int64_t limit,
                 const std::string& name) {
    for (std::int64_t i = 0; i < count; ++i)
        if (index[i] < 0 || index[i] >= limit)
            bad_argument(name + "[" + std::to_string(i) + "] is " + std::to_string(index[i]) +
                         ", expected 0 <= " + name + " < " + std::to_string(limit));
}

void check_types(const std::int32_t* types, std::int64_t num_nodes, int num_types) {
    for (std::int64_t n = 0; n < num_nodes; ++n)
        if (types[n] < 0 || types[n] >= num_types)
            bad_argument({"the type of atom {} is " + std::to_string(types[n]) +
                              ", expected 0 to " + std::to_string(num_types - 1),
                          {n}});
}

// Checks a system, and sorts its edges if the list is new. Returns whether the list is new.
bool Graph::take(const System& system, double r_max, int num_types, std::int64_t block,
                 bool reorder) {
    check_sizes(system);
    check_types(system.types, system.num_nodes, num_types);
    if (system.same_edges) {
        if (system.same_shifts && shifted_ && system.shifts == nullptr && system.images == nullptr)
            bad_argument(
                "shifts are missing, but mdcg_system.list names those of the last call: give them");
        if (!ordered_ || system.num_local != num_local || system.num_nodes != num_nodes ||
            system.num_edges != static_cast<std::int64_t>(all_edge_.size()))
            bad_argument(
                "the system has " + std::to_string(system.num_nodes) + " nodes and " +
                std::to_string(system.num_edges) +
                " edges, but mdcg_system.list names the list of the last call, which had " +
                std::to_string(num_nodes) + " and " + std::to_string(all_edge_.size()) +
                ": set list.edges to 0 when edges change");
        if (system.images != nullptr && (num_images_ < 0 || system.num_images < num_images_)) {
            check_range(system.images, system.num_edges, system.num_images, "image");
            num_images_ = system.num_images;
        }
        return false;
    }
    all_edge_.clear();
    ordered_ = false;  // if the rest throws, there is no list
    check_range(system.sender, system.num_edges, system.num_nodes, "sender");
    check_range(system.receiver, system.num_edges, system.num_local, "receiver");
    if (system.images != nullptr)
        check_range(system.images, system.num_edges, system.num_images, "image");
    num_images_ = system.images != nullptr ? system.num_images : -1;
    shifted_ = system.images != nullptr || system.shifts != nullptr;
    num_local = system.num_local;
    num_nodes = system.num_nodes;
    nodes_per_block = block;
    node.resize(size(num_nodes));
    if (reorder) {
        sort_nodes(system.positions, 0, num_local, r_max / 3, work_, node);
        sort_nodes(system.positions, num_local, num_nodes, r_max / 3, work_, node);
    } else {
        for (std::int64_t n = 0; n < num_nodes; ++n) node[size(n)] = narrow(n);
    }
    order(system);
    ordered_ = true;
    return true;
}

void Graph::update(const System& system, double r_max, int num_types, std::int64_t block,
                   bool reorder, int threads) {
    check_positions(system);
    take(system, r_max, num_types, block, reorder);
    positions_.resize(size(3 * num_nodes));
    types.resize(size(num_nodes));
    for (std::int64_t n = 0; n < num_nodes; ++n) {
        const std::int64_t old = node[size(n)];
        types[size(n)] = system.types[old];
        for (int d = 0; d < 3; ++d) positions_[size(3 * n + d)] = system.positions[3 * old + d];
    }
    filter(system, r_max, threads);
}

bool Graph::update_order(const System& system, double r_max, int num_types, bool reorder) {
    if (!system.same_edges) check_positions(system);  // nodes are sorted by their positions
    bool changed = take(system, r_max, num_types, 0, reorder);
    num_edges = system.num_edges;
    types.resize(size(num_nodes));
    for (std::int64_t n = 0; n < num_nodes; ++n) {
        const std::int32_t type = system.types[node[size(n)]];
        changed = changed || types[size(n)] != type;
        types[size(n)] = type;
    }
    return changed;
}

void Graph::forget_edges(std::int64_t local, std::int64_t nodes, std::int64_t edges) {
    num_local = local;
    num_nodes = nodes;
    num_edges = edges;
    ordered_ = false;
    all_edge_.clear(), all_sender_.clear(), types.clear();
}

void Graph::gather_positions(const System& system, double* positions, int threads) const {
    std::atomic<bool> finite{true};
    share(threads, num_nodes, [&](std::int64_t n, int) {
        for (int d = 0; d < 3; ++d) {
            const double x = system.positions[3 * static_cast<std::int64_t>(node[size(n)]) + d];
            positions[3 * n + d] = x;
            if (!std::isfinite(x)) finite = false;
        }
    });
    if (!finite) check_positions(system);
}

void Graph::order(const System& system) {
    new_number_.resize(size(num_nodes));
    for (std::int64_t n = 0; n < num_nodes; ++n) new_number_[size(node[size(n)])] = narrow(n);

    const std::int64_t edges = system.num_edges;
    all_row_ptr_.assign(size(num_local) + 1, 0);
    for (std::int64_t e = 0; e < edges; ++e)
        ++all_row_ptr_[size(new_number_[size(system.receiver[e])]) + 1];
    accumulate(all_row_ptr_);
    work_.assign(all_row_ptr_.begin(), all_row_ptr_.end());
    all_sender_.resize(size(edges));
    all_edge_.resize(size(edges));
    for (std::int64_t e = 0; e < edges; ++e) {
        const auto at = size(work_[size(new_number_[size(system.receiver[e])])]++);
        all_edge_[at] = narrow(e);
        all_sender_[at] = new_number_[size(system.sender[e])];
    }

    if (nodes_per_block == 0) return;  // no consumer needs blocks by sender
    all_block_ptr_.assign(size(ceil_div(num_nodes, nodes_per_block)) + 1, 0);
    for (const std::int32_t s : all_sender_) ++all_block_ptr_[size(s / nodes_per_block) + 1];
    accumulate(all_block_ptr_);
    work_.assign(all_block_ptr_.begin(), all_block_ptr_.end());
    all_block_edge_.resize(size(edges));
    for (std::int64_t i = 0; i < edges; ++i) {
        const auto at = size(work_[size(all_sender_[size(i)] / nodes_per_block)]++);
        all_block_edge_[at] = narrow(i);
    }
}

void Graph::filter(const System& system, double r_max, int threads) {
    const double limit = r_max * r_max;
    const auto vector = [&](std::int64_t i, std::int64_t r, double* v) {
        const double* a = &positions_[size(3 * r)];
        const double* b = &positions_[size(3 * static_cast<std::int64_t>(all_sender_[size(i)]))];
        for (int d = 0; d < 3; ++d) v[d] = a[d] - b[d];
        if (const double* shift = system.shift(all_edge_[size(i)]))
            for (int d = 0; d < 3; ++d) v[d] += shift[d];
        return v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
    };
    row_ptr.resize(size(num_local) + 1);
    row_ptr[0] = 0;
    std::atomic<std::int64_t> coincident{-1}, endless{-1};
    share(threads, num_local, [&](std::int64_t r, int) {
        std::int64_t kept = 0;
        for (std::int64_t i = all_row_ptr_[size(r)]; i < all_row_ptr_[size(r) + 1]; ++i) {
            double v[3];
            const double square = vector(i, r, v);
            kept += square <= limit;
            if (!std::isfinite(square)) endless = i;
            // shorter lengths overflow in their inverse powers
            if (square < 1e-12)
                for (std::int64_t old = coincident; old < i;)
                    if (coincident.compare_exchange_weak(old, i)) break;
        }
        row_ptr[size(r) + 1] = kept;
    });
    const auto ends = [&](std::int64_t i) -> std::vector<std::int64_t> {
        const auto e = size(all_edge_[size(i)]);
        return {system.sender[e], system.receiver[e]};
    };
    if (endless >= 0)
        bad_argument(
            {"the edge from atom {} to atom {} has no finite length, expected finite shifts",
             ends(endless)});
    if (coincident >= 0)
        bad_argument({"atoms {} and {} are at the same place, expected a distance between them",
                      ends(coincident)});
    accumulate(row_ptr);
    num_edges = row_ptr[size(num_local)];
    sender.resize(size(num_edges));
    receiver.resize(size(num_edges));
    vec.resize(size(3 * num_edges));
    kept_.resize(all_edge_.size());
    share(threads, num_local, [&](std::int64_t r, int) {
        std::int64_t at = row_ptr[size(r)];
        for (std::int64_t i = all_row_ptr_[size(r)]; i < all_row_ptr_[size(r) + 1]; ++i) {
            double v[3];
            if (!(vector(i, r, v) <= limit)) {  // the same test as above, also for NaN
                kept_[size(i)] = -1;
                continue;
            }
            kept_[size(i)] = narrow(at);
            sender[size(at)] = all_sender_[size(i)];
            receiver[size(at)] = narrow(r);
            for (int d = 0; d < 3; ++d) vec[size(3 * at + d)] = v[d];
            ++at;
        }
    });

    const auto blocks = static_cast<std::int64_t>(all_block_ptr_.size()) - 1;
    block_ptr.resize(size(blocks) + 1);
    block_ptr[0] = 0;
    share(threads, blocks, [&](std::int64_t b, int) {
        std::int64_t kept = 0;
        for (std::int64_t i = all_block_ptr_[size(b)]; i < all_block_ptr_[size(b) + 1]; ++i)
            kept += kept_[size(all_block_edge_[size(i)])] >= 0;
        block_ptr[size(b) + 1] = kept;
    });
    accumulate(block_ptr);
    block_edge.resize(size(num_edges));
    share(threads, blocks, [&](std::int64_t b, int) {
        std::int64_t at = block_ptr[size(b)];
        for (std::int64_t i = all_block_ptr_[size(b)]; i < all_block_ptr_[size(b) + 1]; ++i) {
            const std::int32_t e = kept_[size(all_block_edge_[size(i)])];
            if (e >= 0) block_edge[size(at++)] = e;
        }
    });
}

std::size_t Graph::bytes() const {
    return 8 * (row_ptr.capacity() + block_ptr.capacity() + vec.capacity() +
                all_row_ptr_.capacity() + all_block_ptr_.capacity() + positions_.capacity() +
                work_.capacity()) +
           4 * (sender.capacity() + receiver.capacity() + block_edge.capacity() + types.capacity() +
                node.capacity() + new_number_.capacity() + all_edge_.capacity() +
                all_sender_.capacity() + all_block_edge_.capacity() + kept_.capacity());
}

}  // namespace mdcg
