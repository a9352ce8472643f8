#include "engine/ops/conv/sender_sums_cuda.hpp"

#include <numeric>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// With so few sums, several threads share one, to use more of the device. The number is the same on
// all devices, because it decides in which order edges are added.
constexpr std::int64_t FEW_ITEMS = std::int64_t(1) << 17;

template <typename T>
SenderSumArguments<T> arguments(const T* rows, std::int64_t width, T* target) {
    SenderSumArguments<T> sums{};
    sums.rows = reinterpret_cast<const PackOf<T>*>(rows);
    sums.target = reinterpret_cast<PackOf<T>*>(target);
    sums.width = width / PackOf<T>::ITEMS;
    return sums;
}

}  // namespace

template <typename T>
void CudaSenderSums<T>::add_edges(const DeviceStream& stream, const DeviceEdges& graph,
                                  const ReceiverRange& edges, const T* rows, std::int64_t width,
                                  T* target) const {
    SenderSumArguments<T> sums = arguments(rows, width, target);
    sums.senders = graph.num_nodes;
    sums.row_ptr = graph.sender_ptr;
    sums.edge = graph.by_sender;
    sums.length = graph.length;
    sums.first_edge = edges.first_edge;
    sums.num_edges = edges.num_edges;
    launch(stream, sums);
}

template <typename T>
void CudaSenderSums<T>::add_pairs(const DeviceStream& stream, const DeviceEdges& graph,
                                  std::size_t number, const T* rows, const Own& own,
                                  std::int64_t width, T* target, bool add) const {
    const ReceiverRange& range = graph.ranges[number];
    SenderSumArguments<T> sums = arguments(rows, width, target);
    SenderSumArguments<T> receivers = sums;
    // if there are several ranges, some receivers of a range are not among its senders
    SenderSumArguments<T>& to = graph.ranges.size() == 1 ? sums : receivers;
    to.own = reinterpret_cast<const PackOf<T>*>(own.rows);
    to.own_parts = narrow(own.parts);
    to.first_own = range.first_receiver;
    to.num_own = range.num_receivers;
    to.add = add;
    if (&to == &receivers) {
        receivers.senders = range.num_receivers;
        launch(stream, receivers);
        sums.sender = graph.range_sender + range.first_sender;
    }
    sums.senders = range.num_senders;
    sums.row_ptr = graph.range_row_ptr + range.first_sender + number;
    sums.active_rows = graph.active_rows;
    launch(stream, sums);
}

template <typename T>
void CudaSenderSums<T>::launch(const DeviceStream& stream, SenderSumArguments<T> sums) const {
    const std::int64_t items = sums.senders * sums.width;
    sums.parts = items <= FEW_ITEMS ? 4 : 1;
    sums.group = static_cast<int>(std::gcd(sums.width, Long(32)));
    sum_.launch(stream, ceil_div(items, SENDER_THREADS / sums.parts), SENDER_THREADS, sums);
}

template class CudaSenderSums<float>;
template class CudaSenderSums<double>;

}  // namespace mdcg
