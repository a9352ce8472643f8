#include "engine/ops/conv/sender_sums_cuda.hpp"

#include <numeric>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// So few sums would leave most of a device idle. The number does not depend on the device: it
// decides in which order edges are added.
constexpr std::int64_t FEW_ITEMS = std::int64_t(1) << 17;

template <typename T>
const PackOf<T>* packs(const T* rows) {
    return reinterpret_cast<const PackOf<T>*>(rows);
}

// The senders of a range.
template <typename T>
SenderSumArguments<T> senders_of(const DeviceEdges& graph, std::size_t number, const T* rows,
                                 std::int64_t width, T* target) {
    const ReceiverRange& range = graph.ranges[number];
    SenderSumArguments<T> sums{};
    sums.rows = packs(rows);
    sums.target = reinterpret_cast<PackOf<T>*>(target);
    sums.sender = graph.range_sender + range.first_sender;
    sums.senders = range.num_senders;
    sums.width = width / PackOf<T>::ITEMS;
    return sums;
}

}  // namespace

template <typename T>
CudaSenderSums<T>::CudaSenderSums(CudaKernels& kernels)
    : sum_(kernels.fixed("sender_sums.cuh", "sum_by_sender")) {}

template <typename T>
void CudaSenderSums<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                            std::size_t number, const CudaChunk& chunk, const T* rows,
                            std::int64_t width, T* target) const {
    SenderSumArguments<T> sums = senders_of(graph, number, rows, width, target);
    sums.row_ptr = graph.range_sender_ptr + graph.first_pointer(number);
    sums.edge = graph.edge_of_place + graph.ranges[number].first_edge;
    sums.length = graph.length;
    sums.first_edge = chunk.first_edge;
    sums.num_edges = chunk.num_edges;
    launch(stream, sums);
}

template <typename T>
void CudaSenderSums<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                            std::size_t number, const T* rows, const Own& own, std::int64_t width,
                            T* target, bool add) const {
    const ReceiverRange& range = graph.ranges[number];
    SenderSumArguments<T> sums = senders_of(graph, number, rows, width, target);
    const auto add_own = [&](SenderSumArguments<T>& to) {
        to.own = packs(own.rows);
        to.own_parts = narrow(own.parts);
        to.first_own = range.first_receiver;
        to.num_own = range.num_receivers;
        to.add = add;
    };
    if (graph.ranges.size() == 1) {
        add_own(sums);
    } else {  // some of the receivers are no senders
        SenderSumArguments<T> receivers = sums;
        receivers.sender = nullptr;
        receivers.senders = range.num_receivers;
        add_own(receivers);
        launch(stream, receivers);
    }
    sums.row_ptr = graph.range_row_ptr + graph.first_pointer(number);
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
