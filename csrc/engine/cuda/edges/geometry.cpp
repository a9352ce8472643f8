#include "engine/cuda/edges/geometry.hpp"

#include <algorithm>

#include "core/integers.hpp"
#include "kernels/geometry.hpp"

namespace mdcg {

namespace {

constexpr int GEOMETRY_WARPS = 8, ASSEMBLE_THREADS = 128;

}  // namespace

template <typename T>
CudaGeometry<T>::CudaGeometry(CudaKernels& kernels, double r_max, bool flip)
    : geometry_(kernels.fixed("geometry.cuh", "geometry")),
      assemble_(kernels.fixed("geometry.cuh", "assemble")),
      add_own_(kernels.fixed("geometry.cuh", "add_own_forces")),
      r_max_(r_max),
      flip_(flip) {}

template <typename T>
void CudaGeometry<T>::run(const DeviceStream& stream, const DeviceEdges& graph,
                          int* failures) const {
    GeometryArguments<T> a{};
    a.num_local = graph.num_local;
    a.row_ptr = graph.row_ptr;
    a.sender = graph.sender;
    a.positions = graph.positions;
    a.length = graph.length;
    a.active = graph.active;
    a.by_length = graph.by_length;
    a.num_active = graph.num_active;
    a.group = graph.group;
    a.by_group = graph.by_group;
    a.pair_row = graph.pair_row;
    a.active_pairs = graph.active_pairs;
    a.active_pair_row = graph.active_pair_row;
    a.num_pairs = graph.num_pairs;
    a.active_rows = graph.active_rows;
    a.shifts = graph.shifts;
    a.unit = static_cast<T*>(graph.unit);
    a.sender_type = graph.by_sender_type ? graph.sender_type : nullptr;
    a.failures = failures;
    a.r_max = r_max_;
    a.sign = flip_ ? -1.0 : 1.0;
    const std::int64_t group = std::max<std::int64_t>(graph.group, 1);
    const std::int64_t receivers = GEOMETRY_WARPS / group * group;  // receivers per block
    geometry_.launch(stream, ceil_div(graph.num_local, receivers), 32 * narrow(receivers), a);
}

template <typename T>
void CudaGeometry<T>::assemble(const DeviceStream& stream, const DeviceEdges& graph,
                               const T* edge_gradient, double* forces, double* virials) const {
    const AssembleArguments<T> arguments{
        graph.num_nodes,        graph.num_local, graph.row_ptr, graph.sender_ptr, graph.by_sender,
        graph.sender,           graph.receiver,  graph.shifts,  graph.positions,  edge_gradient,
        graph.gradient_streams, graph.num_edges, forces,        virials};
    assemble_.cover(stream, 32 * graph.num_nodes, ASSEMBLE_THREADS, arguments);
}

template <typename T>
void CudaGeometry<T>::add_own(const DeviceStream& stream, const DeviceEdges& graph,
                              const double* own, double* forces, double* virials) const {
    const OwnForceArguments arguments{own, own + 3 * graph.num_local, forces, virials,
                                      graph.num_local};
    add_own_.cover(stream, graph.num_local, ASSEMBLE_THREADS, arguments);
}

template class CudaGeometry<float>;
template class CudaGeometry<double>;

}  // namespace mdcg
