// Sums of rows by node: rows of senders, which are those of edges or of pairs, and rows that blocks
// have summed for receivers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/cuda_op.hpp"
#include "kernels/sender_sums.hpp"

namespace mdcg {

template <typename T>
class CudaSenderSums {
public:
    CudaSenderSums() = default;
    explicit CudaSenderSums(CudaKernels& kernels)
        : sum_(kernels.fixed("sender_sums.cuh", "sum_by_sender")) {}

    // Adds each row of an edge of some receivers to the row of `target` of its sender, in a fixed
    // order. Rows are in the order of edges; those of edges beyond r_max may hold anything. `width`
    // is a multiple of 16 bytes.
    void add_edges(const DeviceStream& stream, const DeviceEdges& graph, const ReceiverRange& edges,
                   const T* rows, std::int64_t width, T* target) const;

    // Rows of the receivers of a range: [receivers][parts][width].
    struct Own {
        const T* rows;
        std::int64_t parts;
    };
    // The same with rows of the pairs of a range, and rows of its receivers. `rows` is the address
    // that row 0 of the list would have; those of pairs that are all beyond r_max may hold
    // anything. Where `add` is false, rows of `target` of local nodes are written, and those of
    // others added to. Then the list must have one range.
    void add_pairs(const DeviceStream& stream, const DeviceEdges& graph, std::size_t range,
                   const T* rows, const Own& own, std::int64_t width, T* target, bool add) const;

private:
    void launch(const DeviceStream& stream, SenderSumArguments<T> sums) const;

    CudaFunction sum_;
};

}  // namespace mdcg
