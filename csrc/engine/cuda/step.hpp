// The parts of one evaluation on a device, and which of them may run at the same time.
#pragma once

#include <vector>

#include "engine/cuda/halves.hpp"
#include "engine/program.hpp"

namespace mdcg {

struct StepPart {
    enum Kind { start, forward, sum_energies, start_backward, backward, finish, download } kind;
    const Stage* stage = nullptr;
    // The host communicates in this part, or launches what the cell asks for: it is not captured.
    bool direct = false;
    Half half = Half::whole;
    // In captured steps: the stream that runs this part, the parts on other streams that it waits
    // for, and whether another stream waits for this part.
    int stream = 0;
    std::vector<int> waits_for;
    bool awaited = false;
};

// Streams of a captured step: stream 0 runs operations on edges, the others run operations on
// nodes. Models have few branches that do not depend on each other.
constexpr int STEP_STREAMS = 5;

// Returns the parts in order of execution. With gradients and `beside`, parts that do not depend on
// each other are on different streams: between two direct parts the first and the last part run on
// stream 0, all others wait for the first, and the last waits for all. Without communicator and
// ghosts, nothing is exchanged. `halves` [num_ops]: operations that run in halves, so that rows of
// ghosts travel meanwhile; empty: none.
std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates,
                                    bool has_ghosts, bool beside, const std::vector<char>& halves);

}  // namespace mdcg
