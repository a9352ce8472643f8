// Streams of an evaluation, for kernels that may run beside each other.
#pragma once

#include <array>
#include <cstddef>

#include "core/device.hpp"

namespace mdcg {

// Lane 0 is the evaluation's own stream. Between `fork` and `join` the others run beside it, in
// captured graphs too.
class Lanes {
public:
    static constexpr int COUNT = 4;

    explicit Lanes(int device)
        : streams_{DeviceStream(device), DeviceStream(device), DeviceStream(device),
                   DeviceStream(device)},
          begun_(device),
          ended_{DeviceEvent(device), DeviceEvent(device), DeviceEvent(device)} {}

    const DeviceStream& operator[](int lane) const {
        return streams_[static_cast<std::size_t>(lane)];
    }
    // Lanes 1 to lanes - 1 begin after what lane 0 has been given.
    void fork(int lanes) {
        if (lanes < 2) return;
        begun_.record(streams_[0]);
        for (int lane = 1; lane < lanes; ++lane) begun_.wait((*this)[lane]);
    }
    // What lane 0 is given from now on begins after theirs.
    void join(int lanes) {
        for (int lane = 1; lane < lanes; ++lane) {
            DeviceEvent& ended = ended_[static_cast<std::size_t>(lane - 1)];
            ended.record((*this)[lane]);
            ended.wait(streams_[0]);
        }
    }

private:
    std::array<DeviceStream, COUNT> streams_;
    DeviceEvent begun_;
    std::array<DeviceEvent, COUNT - 1> ended_;
};

}  // namespace mdcg
