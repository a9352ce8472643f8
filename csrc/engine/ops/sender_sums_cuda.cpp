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
    : sum_(kernels.fixed("sender_sums.cuh", "sum_by_sender")) {}

template <typename T>
void CudaSenderSums<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                            std::size_t number, const T* rows, std::int64_t width,
                            T* target) const {
    const CudaChunk& chunk = graph.chunks[number];
    // one pointer more than senders in every chunk before
    const std::int32_t* const row_ptr =
        graph.chunk_sender_ptr + chunk.first_sender + static_cast<std::int64_t>(number);
    const std::int64_t packs = width / PackOf<T>::ITEMS;
    const std::int64_t items = chunk.num_senders * packs;
    const SenderSumArguments<T> sums{reinterpret_cast<const PackOf<T>*>(rows),
                                     reinterpret_cast<PackOf<T>*>(target),
                                     graph.chunk_sender + chunk.first_sender,
                                     row_ptr,
                                     graph.edge_of_place + chunk.first_edge,
                                     graph.length,
                                     chunk.num_senders,
                                     packs,
                                     items <= FEW_ITEMS ? 4 : 1,
                                     static_cast<int>(std::gcd(packs, std::int64_t(32)))};
    sum_.launch(stream, ceil_div(items, SENDER_THREADS / sums.parts), SENDER_THREADS, sums);
}

template class CudaSenderSums<float>;
template class CudaSenderSums<double>;

}  // namespace mdcg
