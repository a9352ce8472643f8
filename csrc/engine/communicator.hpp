// Exchange of rows between owners and ghosts, done by the host program.
#pragma once

#include <cstdint>

#include "mdcg.h"

namespace mdcg {

// Local nodes whose rows others need, in the order in which rows travel; -1: a row of zeros.
struct SentNodes {
    const std::int64_t* node = nullptr;
    std::int64_t count = 0;
};

// Rows that one other process and this one need of each other.
using Peer = mdcg_peer;

struct Peers {
    int rank = 0, num_ranks = 0;
    const Peer* peer = nullptr;
    std::int64_t count = 0;
};

// All functions throw EngineError (ErrorKind::communication).
class Communicator {
public:
    virtual ~Communicator() = default;

    // Of all nodes: a row has `width` items of `item_bytes` bytes; row n belongs to node n.
    // Copies rows of owners to their ghosts.
    virtual void forward(void* rows, int width, int item_bytes) = 0;
    // Adds rows of ghosts to those of their owners.
    virtual void reverse(void* rows, int width, int item_bytes) = 0;

    // Where the host says which rows travel, these can be used instead: `sent` has a row for each
    // of sent_nodes(), `ghosts` those of all ghosts.
    virtual bool has_sent_nodes() const { return false; }
    virtual SentNodes sent_nodes() const { return {}; }  // the same while edges are
    virtual void forward_rows(const void* /*sent*/, void* /*ghosts*/, int /*row_bytes*/) {}
    virtual void reverse_rows(const void* /*ghosts*/, void* /*sent*/, int /*row_bytes*/) {}

    // Whether any process says so; called by all of them.
    virtual bool has_any() const { return false; }
    virtual bool any(bool mine) { return mine; }

    // Where rows shall go from device to device: they cover all of sent_nodes() and all ghosts.
    virtual bool has_peers() const { return false; }
    virtual Peers peers() const { return {}; }  // the same while edges are
    // What each process has, in the order of ranks; of no bytes: waits for all.
    virtual void gather(const void* /*mine*/, void* /*all*/, int /*bytes*/) {}
};

}  // namespace mdcg
