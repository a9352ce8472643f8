// Points on a device, for operations without edges.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device.hpp"
#include "engine/cuda/kernels.hpp"
#include "engine/neighbors/points.hpp"
#include "kernels/points.hpp"

namespace mdcg {

class DevicePoints {
public:
    explicit DevicePoints(CudaKernels& kernels);

    // Takes new points, which the host has sorted at these positions [num_nodes][3]. They are valid
    // until a point has moved by more than the slack. Waits for the stream.
    void upload(const Points& points, const double* positions, std::int64_t num_local, double slack,
                const DeviceStream& stream);
    // Moves points with their nodes, whose positions are on the device.
    void place(const double* positions, const DeviceStream& stream) const;
    // Returns [numbers][count]: for every point the numbers of its node. Valid until the next call.
    template <typename T>
    const double* gather(const T* rows, int numbers, int width, const DeviceStream& stream) const;
    // The same for the first of the `width` numbers of a row.
    const double* gather_slopes(const double* slopes, int width, const DeviceStream& stream) const;

    const PointSet& set() const { return set_; }
    std::int64_t count() const { return count_; }
    // A row of 64 bytes per local node, for what the forward pass keeps for the backward pass.
    void* kept_rows() const { return kept_; }
    std::size_t bytes() const { return memory_.bytes(); }

private:
    CudaFunction place_, gather_, gather_slopes_;
    DeviceMemory memory_;
    std::vector<char> host_;
    PointSet set_{};
    std::int64_t count_ = 0;
    const int* node_ = nullptr;
    const double* offset_ = nullptr;
    double *axes_[3] = {}, *gathered_ = nullptr;
    char* kept_ = nullptr;
};

}  // namespace mdcg
