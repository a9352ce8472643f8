// The parts of one evaluation on a device, and which of them may run at the same time.
#pragma once

#include <vector>

#include "engine/program.hpp"

namespace mdcg {

struct StepPart {
    enum Kind { start, forward, sum_energies, start_backward, backward, finish } kind;
    const Stage* stage = nullptr;
    bool exchange = false;  // the host communicates in this part, so that it cannot be captured
    // A captured step runs this part on its second stream, because it is not in the longest chain
    // of parts that wait for each other.
    bool beside = false;
    int after = -1;  // the last part on the other stream that this one waits for; -1: none
};

// Returns the parts in order of execution. With gradients and `beside`, they are assigned to two
// streams: between two exchanges the first and the last part run on the first stream, and the last
// part waits for both streams.
std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates,
                                    bool beside);

}  // namespace mdcg
