// Lists of neighbours made on a device.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/cuda/graph.hpp"
#include "engine/list_watch.hpp"

namespace mdcg {

// What a list is made of.
struct ListPoints {
    std::int64_t count = 0;
    const double* positions = nullptr;    // [count][3]
    const std::int32_t* types = nullptr;  // [num_nodes]
    std::int64_t num_local = 0, num_nodes = 0;
    // False: all points are local nodes, which are numbered anew. True: the first points are the
    // nodes, which keep their numbers, and only local ones have edges; those to a point are from
    // its node, with its image.
    bool copies = false;
    const std::int32_t* node = nullptr;   // [count]
    const std::int32_t* image = nullptr;  // [count]
};

class CudaCellList {
public:
    explicit CudaCellList(CudaKernels& kernels);

    // Makes `graph` of all pairs within the reach of a watch that has just looked at the positions
    // (in the order given). False, and nothing has changed, where the host's list serves better:
    // systems with many empty bins, or with very many images; never of copies. Throws
    // EngineError for too many edges. Synchronizes. `node` becomes the given number of each node.
    bool make(const ListWatch& watch, const ListPoints& points, int num_types,
              const CudaStream& stream, CudaGraph& graph, std::vector<std::int32_t>& node);

    // The cell of later steps. Enqueues.
    void set_cell(const ListWatch& watch, const CudaStream& stream);
    // Where positions of a step go, [num_nodes][3] in the order given.
    double* given() const { return given_; }
    // Part of every step, but of copies: graph.positions from those.
    void place(const CudaStream& stream) const;

    std::size_t bytes() const { return nodes_.bytes() + bins_.bytes(); }

private:
    // As text/cell_list.cuh has it.
    struct Arguments {
        std::int64_t num_nodes, num_bins;
        const double *given, *cell;
        double inverse[9], low[3], scale[3];
        std::int32_t bins[3], tiles[3], stencil[3], periodic[3];
        double square;
        const std::int32_t* given_types;
        std::int32_t* given_wraps;
        std::uint32_t* key;
        const std::uint32_t* sorted_key;
        const std::int32_t* node;
        std::int32_t *bin_ptr, *types;
        double* positions;
        std::int32_t* row_ptr;
        std::uint64_t* total;
        std::int32_t *sender, *image;
        const std::int32_t *point_node, *point_image;
        std::int64_t num_local;
    };
    static bool choose_bins(const ListWatch& watch, const ListPoints& points, Arguments& a);

    CudaSort sort_;
    CudaFunction find_bins_, find_atoms_, order_types_, place_atoms_, count_edges_, write_edges_;
    CudaMemory nodes_, bins_;
    double *given_ = nullptr, *cell_ = nullptr;
    std::array<double, 9> host_cell_{};
    Arguments step_{};  // of place
};

}  // namespace mdcg
