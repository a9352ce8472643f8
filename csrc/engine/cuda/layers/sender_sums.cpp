#include "engine/cuda/layers/sender_sums.hpp"

namespace mdcg {

namespace {

const char* const TEXT =
#include "engine/cuda/text/conv.cuh"
    ;

constexpr int THREADS = 256;

// As in text/conv.cuh.
struct SenderSums {
    const void* rows;
    void* target;
    const std::int32_t* sender;
    const std::int32_t* row_ptr;
    const std::int32_t* slot;
    const double* length;
    std::int64_t senders, width;
};

}  // namespace

template <typename T>
CudaSenderSums<T>::CudaSenderSums(CudaKernels& kernels)
    : sum_(kernels.fixed(TEXT, "sum_by_sender")) {}

template <typename T>
void CudaSenderSums<T>::run(const CudaWorker<T>& worker, std::size_t number, const T* rows,
                            std::int64_t width, T* target) const {
    const CudaGraph& graph = *worker.edges;
    const CudaChunk& chunk = graph.chunks[number];
    // one pointer more than senders in every chunk before
    const std::int32_t* const row_ptr =
        graph.chunk_sender_ptr + chunk.first_sender + static_cast<std::int64_t>(number);
    constexpr std::int64_t quad = 16 / sizeof(T);
    const SenderSums sums{rows,
                          target,
                          graph.chunk_sender + chunk.first_sender,
                          row_ptr,
                          graph.slot_of_place + chunk.first_slot,
                          graph.length,
                          chunk.num_senders,
                          width / quad};
    sum_.launch(*worker.stream, (sums.senders * sums.width + THREADS - 1) / THREADS, THREADS, sums);
}

template class CudaSenderSums<float>;
template class CudaSenderSums<double>;

}  // namespace mdcg
