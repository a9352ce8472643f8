// What one evaluation on a device consists of, and which of it may run at the same time.
#pragma once

#include <vector>

#include "engine/program.hpp"

namespace mdcg {

struct StepPart {
    enum Kind { start, forward, sum_energies, start_backward, backward, finish } kind;
    const Stage* stage = nullptr;
    bool exchange = false;  // the host takes part: cannot be captured
    // In a captured step there are two streams. Parts that the longest chain of parts does not need
    // run on the second one, beside the chain.
    bool beside = false;
    int after = -1;  // the last part on the other stream that this one waits for; -1: none
};

// The parts in order. The first and the last one between two exchanges run on the first stream, and
// the last one waits for both streams.
std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates);

}  // namespace mdcg
