// Lengths and directions of edges from positions, and forces from gradients of edges.
#pragma once

#include "engine/cuda/cuda_op.hpp"

namespace mdcg {

// Unit vectors and lengths of all edges from positions; part of every step, before all layers.
template <typename T>
class CudaGeometry {
public:
    CudaGeometry(CudaKernels& kernels, double r_max, bool flip);
    // Where two nodes stand in one place, failures[0] becomes the largest such edge + 1.
    void run(const DeviceStream& stream, const DeviceEdges& graph, int* failures) const;
    // Forces [num_nodes][3] and, where not null, halves of edge virials [num_nodes][9], in double,
    // from edge gradients dE/dvec [gradient parts][edges][3], vec = pos[receiver] - pos[sender] +
    // shift. Both in the numbers of the graph.
    void assemble(const DeviceStream& stream, const DeviceEdges& graph, const T* edge_gradient,
                  double* forces, double* virials) const;

private:
    CudaFunction geometry_, assemble_;
    double r_max_;
    bool flip_;  // harmonics are those of the opposite vector
};

}  // namespace mdcg
