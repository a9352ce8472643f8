// Results of a step: a block of memory on the device, which has several parts, and a copy of it on
// the host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/device.hpp"
#include "engine/cuda/device_edges.hpp"
#include "engine/cuda/kernels.hpp"
#include "kernels/copies.hpp"

namespace mdcg {

class StepResults {
public:
    struct Part {
        std::size_t offset = 0, bytes = 0;
    };

    explicit StepResults(CudaKernels& kernels);

    // Reserves memory for lists of `nodes` nodes; addresses may change, also on the host.
    void reserve(std::int64_t local, std::int64_t nodes, const DeviceStream& stream);
    std::size_t bytes() const { return device_.bytes(); }

    // The next functions enqueue, inside captures too. A kernel copies, because the driver's copies
    // delay the kernels before and after them by some us.
    // Copies positions from page-locked memory of the host (null: none) to those of the nodes, and
    // clears flags, energies and marks of rows.
    void begin(const double* from, const PlacedNodes& placed, const DeviceEdges& graph,
               const DeviceStream& stream) const;
    void sum_energies(const DeviceStream& stream) const;
    void sum_virials(const DeviceStream& stream) const;
    // Copies all parts up to the last one that is wanted. Row node[i] of the energies, forces and
    // virials is copied to row i (`node` is on the device); null: row i.
    void download(const Part& last, const std::int32_t* node, const DeviceStream& stream) const;

    template <typename N>
    N* on_device(const Part& part) const {
        return reinterpret_cast<N*>(device_.as<char>() + part.offset);
    }
    const double* on_host(const Part& part) const {
        return reinterpret_cast<const double*>(host_.as<char>() + part.offset);
    }
    // From the last download: two flags (see CudaWorker), and sums over all nodes.
    const int* flags_on_host() const { return reinterpret_cast<const int*>(on_host(flags)); }
    double energy() const;
    std::array<double, 9> virial() const;

    // In this order. energy_sums and virial_sums hold a sum for each block of SUM_ROWS nodes, which
    // energy() and virial() add.
    Part flags, energies, energy_sums, virial_sums, forces, virials;

private:
    void sum(const Part& rows, std::int64_t count, int width, const Part& out,
             const DeviceStream& stream) const;
    void launch_copy(const CopyArguments& arguments, const DeviceStream& stream) const;

    CudaFunction sum_, copy_;
    DeviceMemory device_;
    PinnedMemory host_;
    std::int64_t num_local_ = 0, num_nodes_ = 0;
};

}  // namespace mdcg
