// Device memory that processes on one machine share, so that rows of ghosts are copied from device
// to device without the host.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <vector>

#include "core/device.hpp"
#include "engine/communicator.hpp"

namespace mdcg {

// Each process has a window: device memory that the others read. The window is double-buffered: a
// half is written again only after the next exchange, when all processes have read it. So each
// exchange needs one synchronisation of all processes.
class PeerWindows {
public:
    explicit PeerWindows(int device) : device_(device), memory_(device), former_(device) {}
    ~PeerWindows();
    PeerWindows(const PeerWindows&) = delete;
    PeerWindows& operator=(const PeerWindows&) = delete;

    // Why a process cannot go on. All processes throw the problem of the lowest rank that has one.
    struct Problem {
        int kind = NONE;  // ErrorKind
        char text[512] = {};
    };
    static constexpr int NONE = -1;
    static Problem problem_of(std::exception_ptr error);

    // Collective, called for every list: makes halves of at least `bytes` bytes, and opens the
    // windows of the communicator's peers. `before`: a problem that this process already has. If a
    // process has a problem, all throw EngineError, whose text says only what the problem is.
    void open(Communicator& communicator, std::size_t bytes, const Problem& before);
    // Collective: opens small windows, and throws the same errors unless every process reads what
    // its peers have written.
    void test(Communicator& communicator);

    // Where this process writes what others read in the next exchange.
    char* mine() const { return memory_.as<char>() + turn_ * half_; }
    // Collective: waits for the stream, and until all processes have come here.
    void exchange(Communicator& communicator, const DeviceStream& stream);
    // After an exchange: the half that was mine() in the process of peer number `peer`.
    const char* of(std::size_t peer) const;

    std::size_t bytes() const { return memory_.bytes(); }

private:
    // What processes tell each other in `open`.
    struct Greeting {
        SharedMemoryHandle handle;
        std::size_t half = 0;
        char machine[64] = {};
        Problem problem;
    };
    struct Window {
        SharedMemoryHandle handle;
        std::size_t half = 0;
        std::unique_ptr<PeerMemory> memory;
    };

    void grow(std::size_t bytes);
    void retire(DeviceMemory& memory);
    void look_into(const Peers& peers, const std::vector<Greeting>& all);

    int device_;
    DeviceMemory memory_, former_;
    std::size_t half_ = 0, turn_ = 0;
    std::vector<Window> windows_;  // by number of the peer
};

}  // namespace mdcg
