#include "engine/cuda/step.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

#include "core/integers.hpp"

namespace mdcg {

namespace {

// Memory that a part reads or writes. Parts depend on each other if they use ranges that overlap
// and one of them writes.
struct MemoryRange {
    enum Of { chunk, local, total, energies, edge_gradient } of;
    std::int64_t begin = 0, end = 1;  // columns of an arena
};

struct Uses {
    std::vector<MemoryRange> reads, writes;
};

bool overlap(const std::vector<MemoryRange>& some, const std::vector<MemoryRange>& others) {
    for (const MemoryRange& a : some)
        for (const MemoryRange& b : others)
            if (a.of == b.of && a.begin < b.end && b.begin < a.end) return true;
    return false;
}

bool must_follow(const Uses& later, const Uses& earlier) {
    return overlap(later.writes, earlier.writes) || overlap(later.writes, earlier.reads) ||
           overlap(later.reads, earlier.writes);
}

// Scratch memory of operations on edges begins where the local rows in use end, and may overlap all
// rows behind them: see CudaExecutor::reserve.
constexpr std::int64_t SCRATCH_END = std::numeric_limits<std::int64_t>::max();

// Larger programs run on one stream.
constexpr std::size_t MOST_PARTS = 1000, MOST_OPERANDS = 5000;

class Scheduler {
public:
    explicit Scheduler(const Program& program) : program_(program), plan_(program.stream_plan) {}

    // Assigns a stream to each part between two direct parts, and finds what it must wait for.
    void assign_streams(std::vector<StepPart>& parts, std::size_t begin, std::size_t end) const {
        const std::size_t count = end - begin;
        if (count < 3) return;
        std::vector<Uses> uses;
        for (std::size_t i = begin; i < end; ++i) uses.push_back(uses_of(parts[i]));
        // ended[i][j]: part j has surely ended when part i begins
        std::vector<std::vector<char>> ended(count, std::vector<char>(count, 0));
        std::vector<std::size_t> last(STEP_STREAMS, 0);  // the latest part of each stream
        const auto wait = [&](std::size_t i, std::size_t other) {
            for (std::size_t k = 0; k < other; ++k) ended[i][k] |= ended[other][k];
            ended[i][other] = 1;
        };
        for (std::size_t i = 1; i < count; ++i) {
            StepPart& part = parts[begin + i];
            std::vector<std::size_t> nearest;  // parts to wait for, which no other wait covers
            for (std::size_t j = i; j-- > 0;) {
                if (ended[i][j]) continue;
                if (j > 0 && i + 1 < count && !must_follow(uses[i], uses[j])) continue;
                nearest.push_back(j);
                wait(i, j);
            }
            if (i + 1 < count && may_move(part)) part.stream = stream_for(ended[i], last);
            std::size_t& before = last[size(part.stream)];
            for (const std::size_t j : nearest) {
                if (parts[begin + j].stream == part.stream) continue;
                part.waits_for.push_back(narrow(static_cast<std::int64_t>(begin + j)));
                parts[begin + j].awaited = true;
            }
            wait(i, before);
            before = i;
        }
    }

private:
    const OpSpec& op(const StepPart& part) const { return *program_.ops[size(part.stage->ops[0])]; }
    static bool has_op(const StepPart& part) {
        return part.kind == StepPart::forward || part.kind == StepPart::backward;
    }
    // Operations on edges stay on stream 0: they share scratch memory and fork their streams from
    // it.
    bool may_move(const StepPart& part) const {
        if (has_op(part)) return op(part).forward_space == IterationSpace::nodes;
        return part.kind == StepPart::sum_energies || part.kind == StepPart::start_backward;
    }
    // Chooses among the streams for nodes: a stream whose latest part has ended when the new part
    // begins, so that the new part does not wait needlessly; of several, the one with the most
    // recent part. If there is none, the stream whose latest part is the oldest.
    static int stream_for(const std::vector<char>& ended, const std::vector<std::size_t>& last) {
        const auto rank = [&](std::size_t stream) {
            const auto part = static_cast<std::int64_t>(last[stream]);
            return ended[last[stream]] ? part : -part;
        };
        std::size_t best = 1;
        for (std::size_t s = 2; s < last.size(); ++s)
            if (rank(s) > rank(best)) best = s;
        return narrow(static_cast<std::int64_t>(best));
    }

    void add(std::vector<MemoryRange>& found, const std::vector<BufferSlot>& slots, int id) const {
        const BufferSlot& slot = slots[size(id)];
        const std::int64_t end = slot.offset + program_.values[size(id)].rows.width;
        if (slot.kind == BufferSlot::chunk) found.push_back({MemoryRange::chunk, slot.offset, end});
        if (slot.kind == BufferSlot::local) found.push_back({MemoryRange::local, slot.offset, end});
        if (slot.kind == BufferSlot::total) found.push_back({MemoryRange::total, slot.offset, end});
    }

    Uses uses_of(const StepPart& part) const {
        Uses uses;
        switch (part.kind) {
            case StepPart::start:
            case StepPart::download:
                break;
            case StepPart::sum_energies:
                uses.reads.push_back({MemoryRange::energies});
                break;
            case StepPart::start_backward:
                uses.writes.push_back({MemoryRange::edge_gradient});
                break;
            case StepPart::finish:
                uses.reads.push_back({MemoryRange::edge_gradient});
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
        if (forward && op.gives_energy()) uses.writes.push_back({MemoryRange::energies});
        if (!may_move(part)) {
            if (!forward) uses.writes.push_back({MemoryRange::edge_gradient});
            const std::int64_t begin = plan_.local_in_use[part.stage->number];
            uses.writes.push_back({MemoryRange::local, begin, SCRATCH_END});
        }
        for (const Operand& input : op.inputs) {
            if (forward || input.saved_for_backward) add(uses.reads, plan_.values, input.id);
            if (forward && op.forward_space == IterationSpace::exchange)
                add(uses.writes, plan_.values, input.id);
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
        if (op.only_reader != nullptr) outputs(*op.only_reader);  // they may be fused
        for (const int id : part.stage->zeroed) add(uses.writes, plan_.gradients, id);
    }

    const Program& program_;
    const BufferPlan& plan_;
};

// Divides exchanges and the operations that read their rows at ghosts into halves:
//     forward:  send, receivers without ghosts, receive, other receivers
//     backward: receivers with ghosts, send, other receivers, receive
class Divider {
public:
    Divider(const Program& program, const std::vector<char>& halves)
        : program_(program), halves_(halves) {}

    void divide(std::vector<StepPart>& parts) const {
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (!parts[i].direct || !parts[i].stage->exchanges() || parts[i].half != Half::whole)
                continue;
            const std::size_t reader = reader_of(parts, i);
            if (reader == i) continue;
            const bool forward = parts[i].kind == StepPart::forward;
            StepPart exchange = parts[i], others = parts[reader];
            parts[i].half = forward ? Half::first : Half::second;
            exchange.half = forward ? Half::second : Half::first;
            parts[reader].half = Half::first;
            others.half = Half::second;
            parts.insert(parts.begin() + static_cast<std::ptrdiff_t>(reader + 1),
                         {exchange, others});
            if (!forward) i += 2;
        }
    }

private:
    // Returns the part nearest to an exchange that reads its rows at ghosts; the number of the
    // exchange if that part has no halves, or if there is another direct part between both.
    std::size_t reader_of(const std::vector<StepPart>& parts, std::size_t exchange) const {
        const StepPart& part = parts[exchange];
        const int value = op(part).inputs.front().id;
        const int step = part.kind == StepPart::forward ? 1 : -1;
        for (auto i = static_cast<std::ptrdiff_t>(exchange) + step;
             parts[at(i)].kind == part.kind && !parts[at(i)].direct; i += step)
            for (const Operand& input : op(parts[at(i)]).inputs)
                if (input.id == value && input.gathered)
                    return halves_[at(parts[at(i)].stage->ops[0])] != 0 ? at(i) : exchange;
        return exchange;
    }
    const OpSpec& op(const StepPart& part) const { return *program_.ops[at(part.stage->ops[0])]; }

    const Program& program_;
    const std::vector<char>& halves_;
};

}  // namespace

std::vector<StepPart> parts_of_step(const Program& program, bool with_gradient, bool communicates,
                                    bool has_ghosts, bool beside, const std::vector<char>& halves) {
    std::vector<StepPart> parts;
    const auto add = [&](StepPart::Kind kind, const std::vector<Stage>& stages) {
        for (const Stage& stage : stages) {
            // Operations on points exchange numbers themselves. Those that add the energy of the
            // system do everything in the last pass.
            const bool exchange = stage.exchanges() || stage.space == IterationSpace::points;
            const bool system = stage.space == IterationSpace::system;
            if (system && with_gradient && kind == StepPart::forward &&
                program.ops[size(stage.ops[0])]->gives_energy())
                continue;
            if (communicates || has_ghosts || !stage.exchanges())
                parts.push_back({kind, &stage, (exchange && communicates) || system});
        }
    };
    parts.push_back({StepPart::start});
    add(StepPart::forward, program.forward_stages);
    const bool late_energies = with_gradient && program.reads_system;
    if (!late_energies) parts.push_back({StepPart::sum_energies});
    if (with_gradient) {
        parts.push_back({StepPart::start_backward});
        add(StepPart::backward, program.backward_stages);
        if (late_energies) parts.push_back({StepPart::sum_energies});
        parts.push_back({StepPart::finish});
    }
    parts.push_back({StepPart::download});
    if (communicates && !halves.empty()) Divider(program, halves).divide(parts);
    // the scheduler compares every pair of parts
    if (!with_gradient || !beside || parts.size() > MOST_PARTS ||
        program.num_operands() > MOST_OPERANDS)
        return parts;
    const Scheduler scheduler(program);
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= parts.size(); ++i)
        if (i == parts.size() || parts[i].direct) {
            scheduler.assign_streams(parts, begin, i);
            begin = i + 1;
        }
    return parts;
}

}  // namespace mdcg
