// Exchange of rows between owners and ghosts, which the host program does.
#pragma once

#include <cstdint>

#include "mdcg.h"

namespace mdcg {

// Local nodes whose rows other processes need, in the order in which rows are sent.
struct SentNodes {
    const std::int64_t* node = nullptr;  // [count]; -1: a row of zeros
    std::int64_t count = 0;
};

// The rows that another process and this process need from each other.
using Peer = mdcg_peer;

struct Peers {
    int rank = 0, num_ranks = 0;
    const Peer* peer = nullptr;  // [count]
    std::int64_t count = 0;
};

// All functions throw EngineError (ErrorKind::communication).
class Communicator {
public:
    virtual ~Communicator() = default;

    // `rows` has num_nodes rows of `width` items of `item_bytes` bytes; row n belongs to node n.
    // Copies rows of owners to their ghosts.
    virtual void forward(void* rows, int width, int item_bytes) = 0;
    // Adds rows of ghosts to the rows of their owners.
    virtual void reverse(void* rows, int width, int item_bytes) = 0;
    // Replaces values [count] of each process by their sum over all processes.
    virtual void sum(std::int64_t* values, std::int64_t count) = 0;

    // If has_sent_nodes(), the next functions can be used instead. `sent` has a row for each of
    // sent_nodes(), `ghosts` a row for each ghost.
    virtual bool has_sent_nodes() const { return false; }
    virtual SentNodes sent_nodes() const { return {}; }  // constant while the edges are the same
    virtual void forward_rows(const void* /*sent*/, void* /*ghosts*/, int /*row_bytes*/) {}
    virtual void reverse_rows(const void* /*ghosts*/, void* /*sent*/, int /*row_bytes*/) {}

    // If has_peers(), rows go from device to device. Together the peers cover all of sent_nodes()
    // and all ghosts.
    virtual bool has_peers() const { return false; }
    virtual Peers peers() const { return {}; }  // constant while the edges are the same
    // Gathers `bytes` bytes of each process in the order of ranks; 0 bytes: a barrier.
    virtual void gather(const void* /*mine*/, void* /*all*/, int /*bytes*/) {}
};

}  // namespace mdcg
