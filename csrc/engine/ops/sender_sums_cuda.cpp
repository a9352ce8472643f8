#include "engine/ops/sender_sums_cuda.hpp"

#include <numeric>

#include "core/integers.hpp"
#include "kernels/sender_sums.hpp"

namespace mdcg {

namespace {

// So few sums would leave most of a device idle. The number does not depend on the device: it
// decides in which order edges are added.
constexpr std::int64_t FEW_ITEMS = std::int64_t(1) << 17;

}  // namespace

template <typename T>
CudaSenderSums<T>::CudaSenderSums(CudaKernels& kernels)
    : sum_(kernels.fixed("sender_sums.cuh", "sum_by_sender")),
      own_(kernels.fixed("sender_sums.cuh", "sum_own")) {}

template <typename T>
void CudaSenderSums<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                            std::size_t number, const CudaChunk* chunk, const T* rows,
                            std::int64_t width, T* target) const {
    const CudaSpan& span = graph.spans[number];
    // one pointer more than senders in every span before
    const std::int64_t pointer = span.first_sender + static_cast<std::int64_t>(number);
    SenderSumArguments<T> sums{};
    sums.rows = reinterpret_cast<const PackOf<T>*>(rows);
    sums.target = reinterpret_cast<PackOf<T>*>(target);
    sums.sender = graph.span_sender + span.first_sender;
    sums.senders = span.num_senders;
    sums.width = width / PackOf<T>::ITEMS;
    if (chunk == nullptr) {
        sums.row_ptr = graph.span_row_ptr + pointer;
        sums.live_rows = graph.live_rows;
    } else {
        sums.row_ptr = graph.span_sender_ptr + pointer;
        sums.edge = graph.edge_of_place + span.first_edge;
        sums.length = graph.length;
        sums.first_edge = chunk->first_edge;
        sums.num_edges = chunk->num_edges;
    }
    const std::int64_t items = sums.senders * sums.width;
    sums.parts = items <= FEW_ITEMS ? 4 : 1;
    sums.group = static_cast<int>(std::gcd(sums.width, Long(32)));
    sum_.launch(stream, ceil_div(items, SENDER_THREADS / sums.parts), SENDER_THREADS, sums);
}

template <typename T>
void CudaSenderSums<T>::run_own(const DeviceStream& stream, const T* rows, std::int64_t receivers,
                                std::int64_t parts, std::int64_t width, T* target, bool add) const {
    const OwnSumArguments<T> sums{reinterpret_cast<const PackOf<T>*>(rows),
                                  reinterpret_cast<PackOf<T>*>(target),
                                  receivers,
                                  width / PackOf<T>::ITEMS,
                                  parts,
                                  add};
    own_.launch(stream, ceil_div(receivers * sums.width, SENDER_THREADS), SENDER_THREADS, sums);
}

template class CudaSenderSums<float>;
template class CudaSenderSums<double>;

}  // namespace mdcg
