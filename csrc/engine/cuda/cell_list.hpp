// Lists of neighbours made on a device.
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

// What a list is made of.
struct ListPoints {
    std::int64_t count = 0;
    const double* positions = nullptr;    // [count][3], for `make` in page-locked memory
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

    // The bins of points whose positions a watch has just looked at. None where the host's list
    // serves better: systems with many empty bins; never of copies.
    static std::optional<CellArguments> grid(const VerletSkin& watch, const ListPoints& points);
    // Makes all of `graph` but its positions, which each step writes, of all pairs within the reach
    // of the watch. Throws EngineError or GeometryError where there are too many edges.
    // Synchronizes. `node` becomes the given number of each node.
    void make(const CellArguments& grid, const VerletSkin& watch, const ListPoints& points,
              int num_types, const DeviceStream& stream, DeviceEdges& graph,
              std::vector<std::int32_t>& node);

    // The cell of later steps. Enqueues.
    void set_cell(const VerletSkin& watch, const DeviceStream& stream);
    // Where a step puts positions; not for copies.
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
