// Exchange of rows between owners and ghosts, done by the host program.
#pragma once

#include <cstdint>

namespace mdcg {

// Local nodes whose rows others need, in the order in which rows travel; -1: a row of zeros.
struct SentNodes {
    const std::int64_t* node = nullptr;
    std::int64_t count = 0;
};

// Both kinds of functions throw EngineError (ErrorKind::communication).
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
};

}  // namespace mdcg
