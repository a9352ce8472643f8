// What one evaluation on a device consists of, and which of it may run at the same time.
#pragma once

#include <vector>

#include "engine/program.hpp"

namespace mdcg {

struct StepPart {
    enum Kind { start, forward, sum_energies, start_backward, backward, finish } kind;
    const Stage* stage = nullptr;
    bool exchange = false;  // the host takes part: cannot be captured
    // It is not in the longest chain of parts that wait for each other, and runs on the second
    // stream of a captured step.
    bool beside = false;
    int after = -1;  // the last part on the other stream that this one waits for; -1: none
};

// The parts in order, in one stream, or, with gradients and `beside`, in two: then the first and
// the last one between two exchanges run on the first stream, and the last one waits for both.
std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates,
                                    bool beside);

}  // namespace mdcg
