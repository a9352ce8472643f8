// Sums of rows by node: rows of edges or pairs by sender, and rows that blocks have summed for
// receivers.
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

    // Adds the row of each edge of a range to the row of its sender in `target`, in a fixed order.
    // Rows are in the order of edges; rows of edges beyond r_max may hold anything. `width` is a
    // multiple of 16 bytes.
    void add_edges(const DeviceStream& stream, const DeviceEdges& graph, const ReceiverRange& edges,
                   const T* rows, std::int64_t width, T* target) const;

    // Rows of the receivers of a range: [receivers][parts][width].
    struct Own {
        const T* rows;
        std::int64_t parts;
    };
    // The same with rows of the pairs of a range, and rows of its receivers. `rows` is the address
    // that row 0 of the list would have. A row whose pairs are all beyond r_max may hold anything.
    // If `add` is false, the rows of local nodes in `target` are written instead of added to; the
    // list must then have one range.
    void add_pairs(const DeviceStream& stream, const DeviceEdges& graph, std::size_t range,
                   const T* rows, const Own& own, std::int64_t width, T* target, bool add) const;

private:
    void launch(const DeviceStream& stream, SenderSumArguments<T> sums) const;

    CudaFunction sum_;
};

}  // namespace mdcg
