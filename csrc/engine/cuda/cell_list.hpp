// Neighbour lists that are made on a device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cuda/device_edges.hpp"
#include "engine/neighbors/verlet_skin.hpp"
#include "kernels/cell_list.hpp"
#include "kernels/copies.hpp"

namespace mdcg {

// The points that a list is made of.
struct ListPoints {
    std::int64_t count = 0;
    const double* positions = nullptr;    // [count][3]; `make` needs page-locked memory
    const std::int32_t* types = nullptr;  // [num_nodes]
    std::int64_t num_local = 0, num_nodes = 0;
    // False: all points are nodes, local ones first, which get new numbers. True: the first points
    // are the nodes, which keep their numbers; the others are copies. Only local nodes have edges.
    // An edge to a point has the point's `node` as its sender, and the point's `image`.
    bool copies = false;
    const std::int32_t* node = nullptr;   // [count]
    const std::int32_t* image = nullptr;  // [count]
};

class CudaCellList {
public:
    explicit CudaCellList(CudaKernels& kernels);

    // The bins of points whose positions `watch` has just checked. Returns none if the host's list
    // is better: for systems with many empty bins, but never for copies.
    static std::optional<CellArguments> grid(const VerletSkin& watch, const ListPoints& points);
    // Makes `graph` from all pairs within the reach of `watch`, except for its positions, which
    // each step writes. `node` becomes the given number of each node. Throws EngineError or
    // GeometryError if there are too many edges. Synchronizes.
    void make(const CellArguments& grid, const VerletSkin& watch, const ListPoints& points,
              int num_types, const DeviceStream& stream, DeviceEdges& graph,
              std::vector<std::int32_t>& node);

    // Sets the cell of later steps. Enqueues.
    void set_cell(const VerletSkin& watch, const DeviceStream& stream);
    // Where a step puts positions; not valid for copies.
    const PlacedNodes& placed_nodes() const { return placed_; }

    std::size_t bytes() const { return nodes_.bytes() + bins_.bytes(); }

private:
    static void write_cell(const VerletSkin& watch, double* cell);

    CudaSort sort_;
    CudaFunction find_bins_, place_points_, number_nodes_, count_edges_, write_edges_;
    DeviceMemory nodes_, bins_;
    PinnedMemory host_;  // what kernels read from the host, and the order that they write
    double* cell_ = nullptr;
    std::array<double, 9> host_cell_{};
    PlacedNodes placed_{};
};

}  // namespace mdcg
