// Streams of an evaluation, for kernels that may run beside each other.
#pragma once

#include <array>
#include <cstddef>

#include "core/device.hpp"

namespace mdcg {

// Lane 0 is the evaluation's own stream. Between `fork` and `join` others run beside it, in
// captured graphs too.
class Lanes {
public:
    // Kernels of a pass run on the first KERNELS lanes. With several spans, rows are summed on the
    // lane after those of the kernels.
    static constexpr int KERNELS = 4, COUNT = KERNELS + 1;

    explicit Lanes(int device)
        : streams_{DeviceStream(device), DeviceStream(device), DeviceStream(device),
                   DeviceStream(device), DeviceStream(device)},
          events_{DeviceEvent(device), DeviceEvent(device), DeviceEvent(device),
                  DeviceEvent(device), DeviceEvent(device)} {}

    const DeviceStream& operator[](int lane) const {
        return streams_[static_cast<std::size_t>(lane)];
    }
    // Lanes 1 to lanes - 1 begin after what lane 0 has been given.
    void fork(int lanes) {
        for (int lane = 1; lane < lanes; ++lane) follow(lane, 0);
    }
    // What lane `to` is given from now on begins after what the first `lanes` have been given.
    void join(int lanes, int to = 0) {
        for (int lane = 0; lane < lanes; ++lane)
            if (lane != to) follow(to, lane);
    }

private:
    void follow(int lane, int earlier) {
        DeviceEvent& event = events_[static_cast<std::size_t>(earlier)];
        event.record((*this)[earlier]);
        event.wait((*this)[lane]);
    }

    std::array<DeviceStream, COUNT> streams_;
    std::array<DeviceEvent, COUNT> events_;
};

}  // namespace mdcg
