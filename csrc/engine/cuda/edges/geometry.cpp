#include "kernels/geometry.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "engine/cuda/edges/edge_functions.hpp"

namespace mdcg {

namespace {

constexpr int GEOMETRY_WARPS = 8, ASSEMBLE_THREADS = 128;

EdgeShifts shifts_of(const DeviceEdges& graph) {
    return {graph.shift, graph.image, graph.table, graph.packed};
}

}  // namespace

template <typename T>
CudaGeometry<T>::CudaGeometry(CudaKernels& kernels, double r_max, bool flip)
    : geometry_(kernels.fixed("geometry.cuh", "geometry")),
      assemble_(kernels.fixed("geometry.cuh", "assemble")),
      r_max_(r_max),
      flip_(flip) {}

template <typename T>
void CudaGeometry<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                          int* failures) const {
    const GeometryArguments<T> arguments{graph.num_local,
                                         graph.row_ptr,
                                         graph.sender,
                                         shifts_of(graph),
                                         graph.positions,
                                         static_cast<T*>(graph.unit),
                                         graph.length,
                                         graph.live,
                                         graph.by_length,
                                         graph.by_sender_type ? graph.sender_type : nullptr,
                                         graph.num_live,
                                         failures,
                                         r_max_,
                                         flip_ ? -1.0 : 1.0,
                                         graph.group,
                                         graph.by_group,
                                         graph.pair_row,
                                         graph.live_pairs,
                                         graph.live_pair_row,
                                         graph.num_pairs,
                                         graph.live_rows};
    const std::int64_t group = std::max<std::int64_t>(graph.group, 1);
    const std::int64_t receivers = GEOMETRY_WARPS / group * group;  // of a block
    geometry_.launch(stream, ceil_div(graph.num_local, receivers), 32 * narrow(receivers),
                     arguments);
}

template <typename T>
void CudaGeometry<T>::assemble(const DeviceStream& stream, const DeviceEdges& graph,
                               const T* edge_gradient, double* forces, double* virials) const {
    const AssembleArguments<T> arguments{
        graph.num_nodes,      graph.num_local, graph.row_ptr,    graph.sender_ptr, graph.by_sender,
        graph.sender,         graph.receiver,  shifts_of(graph), graph.positions,  edge_gradient,
        graph.gradient_lanes, graph.num_edges, forces,           virials};
    assemble_.launch(stream, ceil_div(graph.num_nodes, ASSEMBLE_THREADS / 32), ASSEMBLE_THREADS,
                     arguments);
}

template class CudaGeometry<float>;
template class CudaGeometry<double>;

}  // namespace mdcg
