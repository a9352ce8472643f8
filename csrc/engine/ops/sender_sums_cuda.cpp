#include "engine/ops/sender_sums_cuda.hpp"

#include "core/integers.hpp"
#include "kernels/sender_sums.hpp"

namespace mdcg {

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
    const SenderSumArguments<T> sums{reinterpret_cast<const PackOf<T>*>(rows),
                                     reinterpret_cast<PackOf<T>*>(target),
                                     graph.chunk_sender + chunk.first_sender,
                                     row_ptr,
                                     graph.edge_of_place + chunk.first_edge,
                                     graph.length,
                                     chunk.num_senders,
                                     width / PackOf<T>::ITEMS};
    sum_.launch(stream, ceil_div(sums.senders * sums.width, SENDER_THREADS / SENDER_PARTS),
                SENDER_THREADS, sums);
}

template class CudaSenderSums<float>;
template class CudaSenderSums<double>;

}  // namespace mdcg
