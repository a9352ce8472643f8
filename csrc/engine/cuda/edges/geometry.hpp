// Lengths and directions of edges from positions, and forces from gradients of edges.
#pragma once

#include "engine/cuda/cuda_op.hpp"

namespace mdcg {

// Unit vectors and lengths of all edges from positions; part of every step, before all layers.
template <typename T>
class CudaGeometry {
public:
    CudaGeometry(CudaKernels& kernels, double r_max, bool flip);
    // If edges have two nodes in one place, failures[0] becomes the largest number of them, plus 1.
    void run(const DeviceStream& stream, const DeviceEdges& graph, int* failures) const;
    // Computes forces [num_nodes][3] and, unless null, virials [num_nodes][9] (half of an edge's
    // virial for each of its nodes) from edge gradients dE/dvec [gradient_streams][edges][3], where
    // vec = pos[receiver] - pos[sender] + shift. Rows are in the order of the graph.
    void assemble(const DeviceStream& stream, const DeviceEdges& graph, const T* edge_gradient,
                  double* forces, double* virials) const;
    // Adds the forces [num_local][3] and virials [num_local][6] behind them that operations found.
    void add_own(const DeviceStream& stream, const DeviceEdges& graph, const double* own,
                 double* forces, double* virials) const;

private:
    CudaFunction geometry_, assemble_, add_own_;
    double r_max_;
    bool flip_;  // harmonics are evaluated at the opposite vector
};

}  // namespace mdcg
