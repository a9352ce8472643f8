// Streams of an evaluation, for kernels that may run at the same time.
#pragma once

#include <array>
#include <cstddef>

#include "core/device.hpp"

namespace mdcg {

// Stream 0 is the evaluation's own stream. Between `fork` and `join` the other streams run at the
// same time, in captured graphs too.
class KernelStreams {
public:
    // Kernels of a pass run on the first KERNELS streams. With several ranges, the last stream sums
    // rows.
    static constexpr int KERNELS = 4, COUNT = KERNELS + 1;

    explicit KernelStreams(int device)
        : streams_{DeviceStream(device), DeviceStream(device), DeviceStream(device),
                   DeviceStream(device), DeviceStream(device)},
          events_{DeviceEvent(device), DeviceEvent(device), DeviceEvent(device),
                  DeviceEvent(device), DeviceEvent(device)} {}

    const DeviceStream& operator[](int stream) const {
        return streams_[static_cast<std::size_t>(stream)];
    }
    // Streams 1 to streams - 1 wait for what is now enqueued on stream 0.
    void fork(int streams) {
        for (int stream = 1; stream < streams; ++stream) follow(stream, 0);
    }
    // Stream `to` waits for what is now enqueued on the first `streams` streams.
    void join(int streams, int to = 0) {
        for (int stream = 0; stream < streams; ++stream)
            if (stream != to) follow(to, stream);
    }

private:
    void follow(int stream, int earlier) {
        DeviceEvent& event = events_[static_cast<std::size_t>(earlier)];
        event.record((*this)[earlier]);
        event.wait((*this)[stream]);
    }

    std::array<DeviceStream, COUNT> streams_;
    std::array<DeviceEvent, COUNT> events_;
};

}  // namespace mdcg
