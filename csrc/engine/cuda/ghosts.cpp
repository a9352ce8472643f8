#include "engine/cuda/ghosts.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "core/integers.hpp"
#include "engine/error.hpp"
#include "kernels/nodes.hpp"

namespace mdcg {

namespace {

// Returns the bytes of one row, of all local rows, of all rows.
template <typename T>
std::array<std::size_t, 3> row_bytes(int width, const DeviceEdges& graph) {
    const std::size_t row = size(width) * sizeof(T);
    return {row, size(graph.num_local) * row, size(graph.num_nodes) * row};
}

// What is enqueued on `later` from now on runs after what is now enqueued on `earlier`.
void follow(const DeviceStream& later, const DeviceStream& earlier, DeviceEvent& event) {
    if (&later == &earlier) return;
    event.record(earlier);
    event.wait(later);
}

}  // namespace

template <typename T>
CudaGhosts<T>::CudaGhosts(CudaKernels& kernels)
    : gather_(kernels.fixed("nodes.cuh", "gather_rows")),
      add_(kernels.fixed("nodes.cuh", "add_rows")),
      lists_(kernels.device()),
      packed_(kernels.device()),
      sent_(kernels.device()),
      ghosts_(kernels.device()),
      device_(kernels.device()),
      copies_(kernels.device()),
      written_(kernels.device()),
      arrived_(kernels.device()) {}

template <typename T>
void CudaGhosts<T>::on_new_list(Communicator& communicator, int width, const DeviceEdges& graph,
                                const DeviceStream& stream) {
    by_rows_ = communicator.has_sent_nodes();
    num_sent_ = num_owners_ = 0;
    listed_ = true;
    if (!by_rows_) return;
    listed_ = false;
    const bool peers = communicator.has_peers();
    PeerWindows::Problem problem;
    try {
        take_sent(communicator, graph, stream);
        if (peers) {
            check_peers(communicator.peers(), graph);
            packed_.grow(std::max<std::size_t>(1, size(num_sent_) * size(width) * sizeof(T)));
        }
    } catch (...) {
        if (!peers) throw;
        problem = PeerWindows::problem_of(std::current_exception());  // other ranks wait for it
    }
    if (!peers) windows_.reset();
    if (peers && !windows_) windows_ = std::make_unique<PeerWindows>(device_);
    const std::int64_t longest = std::max(num_sent_, graph.num_nodes - graph.num_local);
    if (peers) try {
            windows_->open(communicator, size(longest) * size(width) * sizeof(T), problem);
        } catch (const EngineError& error) {
            if (error.kind() != ErrorKind::device) throw;
            throw EngineError(ErrorKind::device,
                              std::string("rows cannot go from device to device (") + error.what() +
                                  "), expected ranks on one machine, each of which sees all their "
                                  "devices: let them pass through the host (exchange host)");
        }
    listed_ = true;
}

template <typename T>
void CudaGhosts<T>::take_sent(const Communicator& communicator, const DeviceEdges& graph,
                              const DeviceStream& stream) {
    const SentNodes sent = communicator.sent_nodes();
    num_sent_ = sent.count;
    list_.assign(sent.node, sent.node + sent.count);
    // sorts rows by node, stably
    std::vector<std::int32_t> place(size(graph.num_local) + 1, 0);
    for (std::int64_t i = 0; i < sent.count; ++i) {
        const std::int64_t node = sent.node[i];
        if (node < -1 || node >= graph.num_local)
            bad_argument("sent[" + std::to_string(i) + "] of the communicator is " +
                         std::to_string(node) + ", expected a local node, 0 to " +
                         std::to_string(graph.num_local - 1) + ", or -1");
        if (node >= 0) ++place[size(node) + 1];
    }
    std::vector<std::int32_t> owner, first{0};
    for (std::size_t node = 0; node + 1 < place.size(); ++node) {
        if (place[node + 1] > 0) owner.push_back(narrow(node));
        place[node + 1] += place[node];
        if (place[node + 1] > place[node]) first.push_back(place[node + 1]);
    }
    std::vector<std::int32_t> rows(size(first.back()));
    for (std::int64_t i = 0; i < sent.count; ++i)
        if (sent.node[i] >= 0) rows[size(place[size(sent.node[i])]++)] = narrow(i);
    num_owners_ = static_cast<std::int64_t>(owner.size());
    for (const auto* part : {&owner, &first, &rows})
        list_.insert(list_.end(), part->begin(), part->end());
    lists_.grow(4 * list_.size());
    lists_.upload(list_.data(), 4 * list_.size(), stream);
    node_ = lists_.template as<std::int32_t>();
    owner_ = node_ + num_sent_;
    first_ = owner_ + num_owners_;
    place_ = first_ + num_owners_ + 1;
    stream.synchronize();
}

// Checks that the blocks of rows, one for each process, cover all rows.
template <typename T>
void CudaGhosts<T>::check_peers(const Peers& peers, const DeviceEdges& graph) const {
    const auto check = [&](const std::string& what, std::int64_t all, auto first, auto count) {
        std::vector<std::pair<std::int64_t, std::int64_t>> blocks;
        for (std::int64_t i = 0; i < peers.count; ++i)
            if (peers.peer[i].*count != 0)
                blocks.emplace_back(peers.peer[i].*first, peers.peer[i].*count);
        std::sort(blocks.begin(), blocks.end());
        std::int64_t end = 0;
        bool gap = false;
        for (const auto& [begin, items] : blocks) {
            gap = begin != end || items < 0;
            if (gap) break;
            end += items;
        }
        if (gap || end != all)
            bad_argument("the peers of the communicator name the first " + std::to_string(end) +
                         " of " + std::to_string(all) + " " + what +
                         " without gaps, expected each of them once");
    };
    check("rows of sent", num_sent_, &Peer::sent_first, &Peer::num_sent);
    check("ghosts", graph.num_nodes - graph.num_local, &Peer::ghost_first, &Peer::num_ghosts);
}

// Copies what other processes have in their windows for this one: its ghosts, or gradients of rows
// that it sent.
template <typename T>
void CudaGhosts<T>::from_peers(Communicator& communicator, char* to, bool ghosts, std::size_t row,
                               const DeviceStream& stream) {
    windows_->exchange(communicator, stream);
    const Peers peers = communicator.peers();
    for (std::int64_t i = 0; i < peers.count; ++i) {
        const Peer& peer = peers.peer[i];
        const std::int64_t first = ghosts ? peer.ghost_first : peer.sent_first;
        const std::int64_t there = ghosts ? peer.there_sent_first : peer.there_ghost_first;
        const std::size_t bytes = size(ghosts ? peer.num_ghosts : peer.num_sent) * row;
        if (bytes == 0) continue;
        copy_on_device(to + size(first) * row, windows_->of(size(i)) + size(there) * row, bytes,
                       stream);
        copied_ += bytes;
    }
}

// Reserves buffers, which all exchanges share: each exchange waits for the stream, and so for the
// copies of the exchange before, before the host touches them.
template <typename T>
void CudaGhosts<T>::reserve(int width, const DeviceEdges& graph, const DeviceStream& stream) {
    const auto [row, local, all] = row_bytes<T>(width, graph);
    const std::size_t sent = std::max<std::size_t>(1, size(num_sent_) * row);
    const std::size_t back = std::max<std::size_t>(1, all - (by_rows_ ? local : 0));
    const bool through_host = !windows_;
    if (sent <= packed_.bytes() &&
        (!through_host || (sent <= sent_.bytes() && back <= ghosts_.bytes())))
        return;
    stream.synchronize();
    packed_.grow(sent);
    if (!through_host) return;
    sent_.grow(sent);
    ghosts_.grow(back);
}

template <typename T>
void CudaGhosts<T>::to_host(void* target, const void* source, std::size_t bytes,
                            const DeviceStream& stream) {
    copy_to_host(target, source, bytes, stream);
    copied_ += bytes;
}

template <typename T>
void CudaGhosts<T>::to_device(void* target, const void* source, std::size_t bytes,
                              const DeviceStream& stream) {
    copy_to_device(target, source, bytes, stream);
    copied_ += bytes;
}

template <typename T>
void CudaGhosts<T>::forward(Communicator& communicator, T* rows, int width,
                            const DeviceEdges& graph, const DeviceStream& stream, Half half) {
    reserve(width, graph, stream);
    const auto [row, local, all] = row_bytes<T>(width, graph);
    char* const device = reinterpret_cast<char*>(rows);
    char* const host = ghosts_.as<char>();
    if (!by_rows_) {
        if (half == Half::first) return;
        to_host(host, device, local, stream);
        stream.synchronize();
        communicator.forward(host, width, sizeof(T));
        to_device(device + local, host + local, all - local, stream);
        return;
    }
    const DeviceStream& copies = half == Half::whole ? stream : copies_;
    if (half != Half::second) {
        T* const packed =
            windows_ ? reinterpret_cast<T*>(windows_->mine()) : packed_.template as<T>();
        const GatherArguments<T> arguments{rows, packed, node_, num_sent_, width};
        gather_.cover(stream, 32 * num_sent_, 256, arguments);
        follow(copies, stream, written_);
        if (!windows_) to_host(sent_.as<char>(), packed, size(num_sent_) * row, copies);
    }
    if (half == Half::first) return;
    if (windows_) {
        from_peers(communicator, device + local, true, row, copies);
    } else {
        copies.synchronize();
        communicator.forward_rows(sent_.as<char>(), host, static_cast<int>(row));
        to_device(device + local, host, all - local, copies);
    }
    follow(stream, copies, arrived_);
}

template <typename T>
void CudaGhosts<T>::reverse(Communicator& communicator, T* rows, int width,
                            const DeviceEdges& graph, const DeviceStream& stream, Half half) {
    reserve(width, graph, stream);
    const auto [row, local, all] = row_bytes<T>(width, graph);
    char* const device = reinterpret_cast<char*>(rows);
    char* const host = ghosts_.as<char>();
    if (!by_rows_) {
        if (half == Half::first) return;
        to_host(host, device, all, stream);
        stream.synchronize();
        communicator.reverse(host, width, sizeof(T));
        to_device(device, host, local, stream);  // rows of ghosts are not read again
        return;
    }
    const DeviceStream& copies = half == Half::whole ? stream : copies_;
    if (half != Half::second) {
        follow(copies, stream, written_);
        if (windows_)
            copy_on_device(windows_->mine(), device + local, all - local, copies);
        else
            to_host(host, device + local, all - local, copies);
    }
    if (half == Half::first) return;
    T* const packed = packed_.template as<T>();
    if (windows_) {
        from_peers(communicator, packed_.as<char>(), false, row, copies);
    } else {
        copies.synchronize();
        communicator.reverse_rows(host, sent_.as<char>(), static_cast<int>(row));
        to_device(packed, sent_.as<char>(), size(num_sent_) * row, copies);
    }
    follow(stream, copies, arrived_);
    const AddArguments<T> arguments{rows, packed, owner_, first_, place_, num_owners_, width};
    add_.cover(stream, 32 * num_owners_, 256, arguments);
}

template <typename T>
std::size_t CudaGhosts<T>::take_copied() {
    return std::exchange(copied_, 0);
}

template class CudaGhosts<float>;
template class CudaGhosts<double>;

}  // namespace mdcg
