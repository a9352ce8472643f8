// Exchange of rows between owners and ghosts, done by the host program.
#pragma once

namespace mdcg {

// A row has `width` items of `item_bytes` bytes; row n belongs to node n. Both throw EngineError
// (ErrorKind::communication).
class Communicator {
public:
    virtual ~Communicator() = default;
    // Copies rows of owners to their ghosts.
    virtual void forward(void* rows, int width, int item_bytes) = 0;
    // Adds rows of ghosts to those of their owners.
    virtual void reverse(void* rows, int width, int item_bytes) = 0;
};

}  // namespace mdcg
