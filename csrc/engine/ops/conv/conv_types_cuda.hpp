// Convolutions that are sums by type (type_sums.hpp), on devices.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_op.hpp"
#include "engine/cuda/edges/polynomial_table.hpp"
#include "engine/cuda/gemm.hpp"
#include "engine/ops/conv/conv.hpp"
#include "engine/ops/conv/type_sums.hpp"
#include "kernels/type_sums.hpp"

namespace mdcg {

// From a table of hidden units.
template <typename T>
class CudaTypeSums {
public:
    static bool possible(const ConvSpec& spec) {
        return sums_by_type<T>(spec) && spec.radial.has_table();
    }

    // `spec` must stay.
    explicit CudaTypeSums(const ConvSpec& spec);
    void prepare(CudaKernels& kernels, const DeviceStream& stream);
    // False: the list has senders of too many types.
    bool on_new_list(const DeviceEdges& graph, const DeviceStream& stream);
    // True if forward writes the rows of the linear operation after the convolution.
    bool composed() const { return matrices_.composed(); }

    std::size_t scratch_bytes(const DeviceEdges& graph) const;
    // Writes all rows.
    void forward(CudaWorker<T>& worker) const;
    // Adds to worker.edge_gradient.
    void backward(CudaWorker<T>& worker) const;

private:
    // A block of the rows that are written, its number, and its matrix [types, units][channels].
    struct Part {
        Block block;
        std::size_t number;
        CudaMatrix<T> matrix, transposed;
    };
    struct Scratch {
        T* sums;                 // [receivers][width()][depth()]
        std::int64_t receivers;  // that there is room for
        std::size_t bytes;
    };

    int width() const { return (spec_.description.l_max + 1) * (spec_.description.l_max + 1); }
    std::int64_t depth() const {  // of the matrices
        return static_cast<std::int64_t>(present_.size()) * spec_.hidden_stride;
    }
    void make_matrices(const DeviceStream& stream);
    Scratch lay_out(char* start, const DeviceEdges& graph) const;
    TypeSumArguments<T> arguments(const CudaWorker<T>& worker, const Scratch& scratch) const;
    // Calls body(scratch, arguments, count) for consecutive groups of receivers that fit into the
    // scratch memory.
    template <typename Body>
    void walk(CudaWorker<T>& worker, const Body& body) const;
    // For each receiver `share` warps, or up to `most_parts` times as many where there are few
    // receivers.
    void launch(const CudaFunction& kernel, int share, std::int64_t most_parts,
                const DeviceStream& stream, TypeSumArguments<T> arguments,
                std::int64_t receivers) const;
    // Whether the harmonics of an edge are few enough for a lane to take several of its units.
    bool has_few_harmonics() const { return spec_.description.l_max <= 3; }
    // Units that a warp takes at a time. In float64 lanes take several in the gradient only:
    // forward, they also hold the units of the edges that are loaded ahead.
    std::int64_t units_at_once(bool gradient) const {
        const bool several = has_few_harmonics() && (sizeof(T) == 4 || gradient);
        return several && spec_.hidden_stride > 32 ? 64 : 32;
    }

    const ConvSpec& spec_;
    int num_types_;
    TypeMatrices<T> matrices_;
    PolynomialTable<T> table_;           // of hidden units
    std::vector<std::int32_t> present_;  // types
    std::vector<Part> blocks_;
    bool unused_ = false;  // harmonics without a path
    CudaFunction sums_, shared_sums_, gradient_;
    CudaGemm<T> gemm_;
    int multiprocessors_ = 1;
    std::unique_ptr<DeviceMemory> number_, factors_;
};

}  // namespace mdcg
