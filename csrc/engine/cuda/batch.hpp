// Many systems at once on a device: their list of edges, and the sums of each system.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/cuda/sort.hpp"
#include "engine/neighbors/verlet_skin.hpp"
#include "kernels/systems.hpp"

namespace mdcg {

// Neighbouring systems of a batch that are evaluated together.
struct BatchPart {
    const Batch& batch;
    std::int64_t first, end;  // systems

    std::int64_t first_node() const { return batch.first_node[first]; }
    std::int64_t num_nodes() const { return batch.first_node[end] - first_node(); }
};

class CudaBatch {
public:
    explicit CudaBatch(CudaKernels& kernels);

    // Makes `graph` from all pairs of nodes of one system, and of their images, closer than
    // `r_max`, and writes the positions that belong to its edges. `node` becomes the number of each
    // node in the batch. Throws EngineError, or GeometryError with the batch's numbers of nodes.
    // Synchronizes.
    void make_list(const BatchPart& part, double r_max, int num_types, const DeviceStream& stream,
                   DeviceEdges& graph, std::vector<std::int32_t>& node);
    // Stores energies and virials of the systems of the last list. All pointers but `energy` and
    // `virial` are on the device and have a row for each node; `forces` and `virials` may be null.
    // Throws EngineError that names a system whose results are not finite. Synchronizes.
    void store_sums(const BatchPart& part, const double* energies, const double* forces,
                    const double* virials, double* energy, double* virial,
                    const DeviceStream& stream);

    std::size_t bytes() const { return systems_.bytes() + nodes_.bytes(); }

private:
    void upload(const BatchPart& part, VerletSkin& watch, const DeviceStream& stream);

    CudaSort sort_;
    CudaFunction place_nodes_, count_pairs_, write_pairs_, sum_systems_;
    DeviceMemory systems_, nodes_;
    SystemArguments a_{};
    std::int32_t* work_ = nullptr;
    double *energy_ = nullptr, *virial_ = nullptr;  // one per system
    int* finite_ = nullptr;
    std::vector<char> host_;
};

}  // namespace mdcg
