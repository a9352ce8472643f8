#include "engine/cuda/step.hpp"

#include <algorithm>
#include <cstdint>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Memory, or another resource, that a part reads or writes. Parts depend on each other if they use
// ranges that overlap and one of them writes.
struct Resource {
    enum Of { chunk, local, total, energies, edge_gradient, operation } of;
    std::int64_t begin = 0, end = 1;  // items of a row in an arena; the number of an operation
};

struct Uses {
    std::vector<Resource> reads, writes;
};

bool overlap(const std::vector<Resource>& some, const std::vector<Resource>& others) {
    for (const Resource& a : some)
        for (const Resource& b : others)
            if (a.of == b.of && a.begin < b.end && b.begin < a.end) return true;
    return false;
}

bool must_follow(const Uses& later, const Uses& earlier) {
    return overlap(later.writes, earlier.writes) || overlap(later.writes, earlier.reads) ||
           overlap(later.reads, earlier.writes);
}

// Larger programs run on one stream.
constexpr std::size_t MOST_PARTS = 1000, MOST_OPERANDS = 5000;

class Scheduler {
public:
    explicit Scheduler(const Program& program)
        : program_(program), plan_(program.two_stream_plan) {}

    // Assigns a stream to each part between two exchanges, and finds what it must wait for.
    void assign_streams(std::vector<StepPart>& parts, std::size_t begin, std::size_t end) const {
        const std::size_t count = end - begin;
        if (count < 3) return;
        std::vector<Uses> uses;
        for (std::size_t i = begin; i < end; ++i) uses.push_back(uses_of(parts[i]));
        const auto follows = [&](std::size_t later, std::size_t earlier) {
            return must_follow(uses[later], uses[earlier]);
        };
        // the longest chain of dependent parts that ends in a part, and the one that begins there
        std::vector<int> longest_to(count), longest_from(count);
        for (std::size_t i = 0; i < count; ++i) {
            for (std::size_t j = 0; j < i; ++j)
                if (follows(i, j)) longest_to[i] = std::max(longest_to[i], longest_to[j]);
            longest_to[i] += length(parts[begin + i]);
        }
        for (std::size_t i = count; i-- > 0;) {
            for (std::size_t j = i + 1; j < count; ++j)
                if (follows(j, i)) longest_from[i] = std::max(longest_from[i], longest_from[j]);
            longest_from[i] += length(parts[begin + i]);
        }
        int longest = 0;
        for (std::size_t i = 0; i < count; ++i)
            longest = std::max(longest, longest_to[i] + longest_from[i] - length(parts[begin + i]));
        for (std::size_t i = 1; i + 1 < count; ++i) {
            StepPart& part = parts[begin + i];
            part.beside =
                may_move(part) && longest_to[i] + longest_from[i] - length(part) < longest;
        }
        int waited_until[2] = {-1, -1};  // by stream: the last part of the other one
        for (std::size_t i = 1; i < count; ++i) {
            StepPart& part = parts[begin + i];
            int last = part.beside && waited_until[1] < 0 ? 0 : -1;
            for (std::size_t j = 0; j < i; ++j)
                if (parts[begin + j].beside != part.beside && (i + 1 == count || follows(i, j)))
                    last = narrow(static_cast<std::int64_t>(j));
            int& waited = waited_until[part.beside ? 1 : 0];
            if (last <= waited) continue;
            waited = last;
            part.after = narrow(static_cast<std::int64_t>(begin)) + last;
        }
    }

private:
    const OpSpec& op(const StepPart& part) const { return *program_.ops[size(part.stage->ops[0])]; }
    static bool has_op(const StepPart& part) {
        return part.kind == StepPart::forward || part.kind == StepPart::backward;
    }
    // Operations on edges stay on the first stream: they share scratch memory and fork their lanes
    // from it.
    bool may_move(const StepPart& part) const {
        return !has_op(part) || op(part).forward_space == IterationSpace::nodes;
    }
    // An operation on edges takes about ten times as long as one on nodes.
    int length(const StepPart& part) const { return may_move(part) ? 1 : 10; }

    void add(std::vector<Resource>& found, const std::vector<BufferSlot>& slots, int id) const {
        const BufferSlot& slot = slots[size(id)];
        const std::int64_t end = slot.offset + program_.values[size(id)].rows.width;
        if (slot.kind == BufferSlot::chunk) found.push_back({Resource::chunk, slot.offset, end});
        if (slot.kind == BufferSlot::local) found.push_back({Resource::local, slot.offset, end});
        if (slot.kind == BufferSlot::total) found.push_back({Resource::total, slot.offset, end});
    }

    Uses uses_of(const StepPart& part) const {
        Uses uses;
        switch (part.kind) {
            case StepPart::start:
                break;
            case StepPart::sum_energies:
                uses.reads.push_back({Resource::energies});
                break;
            case StepPart::start_backward:
                uses.writes.push_back({Resource::edge_gradient});
                break;
            case StepPart::finish:
                uses.reads.push_back({Resource::edge_gradient});
                break;
            case StepPart::forward:
            case StepPart::backward:
                uses_of_op(part, uses);
                break;
        }
        return uses;
    }

    void uses_of_op(const StepPart& part, Uses& uses) const {
        const OpSpec& op = this->op(part);
        const bool forward = part.kind == StepPart::forward;
        uses.writes.push_back({Resource::operation, op.index, op.index + 1});
        if (forward && op.gives_energy()) uses.writes.push_back({Resource::energies});
        if (!forward && !may_move(part)) uses.writes.push_back({Resource::edge_gradient});
        for (const Operand& input : op.inputs) {
            if (forward || input.saved_for_backward) add(uses.reads, plan_.values, input.id);
            if (!forward && input.needs_gradient) add(uses.writes, plan_.gradients, input.id);
        }
        const auto outputs = [&](const OpSpec& of) {
            for (const Operand& output : of.outputs) {
                if (forward) add(uses.writes, plan_.values, output.id);
                if (!forward && output.saved_for_backward) add(uses.reads, plan_.values, output.id);
                if (!forward) add(uses.reads, plan_.gradients, output.id);
            }
        };
        outputs(op);
        if (op.only_reader != nullptr) outputs(*op.only_reader);  // see there
        for (const int id : part.stage->zeroed) add(uses.writes, plan_.gradients, id);
    }

    const Program& program_;
    const BufferPlan& plan_;
};

}  // namespace

std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates,
                                    bool beside) {
    std::vector<StepPart> parts;
    const auto add = [&](StepPart::Kind kind, const std::vector<Stage>& stages) {
        for (const Stage& stage : stages) {
            // operations on points exchange numbers themselves
            const bool exchange = stage.exchanges() || stage.space == IterationSpace::points;
            if (communicates || !stage.exchanges())
                parts.push_back({kind, &stage, exchange && communicates});
        }
    };
    parts.push_back({StepPart::start});
    add(StepPart::forward, program.forward_stages);
    parts.push_back({StepPart::sum_energies});
    if (with_gradient) {
        parts.push_back({StepPart::start_backward});
        add(StepPart::backward, program.backward_stages);
        parts.push_back({StepPart::finish});
    }
    // every pair of parts is compared
    if (!with_gradient || !beside || parts.size() > MOST_PARTS ||
        program.num_operands() > MOST_OPERANDS)
        return parts;
    const Scheduler scheduler(program);
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= parts.size(); ++i)
        if (i == parts.size() || parts[i].exchange) {
            scheduler.assign_streams(parts, begin, i);
            begin = i + 1;
        }
    return parts;
}

}  // namespace mdcg
