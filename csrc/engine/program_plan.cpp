// The order of a program's operations, their stages, and the layout of its buffers.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "core/integers.hpp"
#include "engine/program.hpp"

namespace mdcg {

namespace {

// A matrix, and the first and last step at which it is in use.
struct Interval {
    int id;
    bool gradient;
    std::int64_t width;
    int begin, end;
    bool on_edges = false;  // whether it is in use during an operation on edges
};

struct Placed {
    Interval interval;
    std::int64_t offset;
    std::int64_t end() const { return offset + interval.width; }
};

// Gives overlapping intervals disjoint memory: first those in use during operations on edges, then
// the others, wide ones first. Returns the total width.
std::int64_t arrange(std::vector<Interval> intervals, BufferPlan& plan,
                     std::vector<Placed>& placed) {
    std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
        if (a.on_edges != b.on_edges) return a.on_edges;
        if (a.width != b.width) return a.width > b.width;
        return std::make_pair(a.begin, a.id) < std::make_pair(b.begin, b.id);
    });
    placed.clear();
    std::int64_t whole = 0;
    for (const Interval& interval : intervals) {
        std::vector<std::pair<std::int64_t, std::int64_t>> taken;
        for (const Placed& other : placed)
            if (other.interval.begin <= interval.end && interval.begin <= other.interval.end)
                taken.emplace_back(other.offset, other.end());
        std::sort(taken.begin(), taken.end());
        std::int64_t offset = 0;
        for (const auto& [begin, end] : taken) {
            if (begin - offset >= interval.width) break;
            offset = std::max(offset, end);
        }
        placed.push_back({interval, offset});
        whole = std::max(whole, offset + interval.width);
        (interval.gradient ? plan.gradients : plan.values)[at(interval.id)].offset = offset;
    }
    return whole;
}

}  // namespace

// On CPUs the backward pass is the forward pass reversed. On devices an operation on nodes runs as
// soon as its gradients are complete, so that it can overlap with operations on edges.
void Program::find_backward_order() {
    const int count = narrow(static_cast<std::int64_t>(ops.size()));
    // for each operation: the operations whose backward pass must come first
    std::vector<std::set<int>> must_precede(ops.size());
    for (const Value& value : values) {
        for (const int reader : value.readers) {
            for (const int writer : value.writers) must_precede[at(writer)].insert(reader);
            if (ops[at(reader)]->forward_space != IterationSpace::exchange) continue;
            for (const int other : value.readers)
                if (other != reader)
                    must_precede[at(std::min(reader, other))].insert(std::max(reader, other));
        }
    }
    if (stages_ == Stages::shared)
        for (int i = 0; i + 1 < count; ++i) must_precede[at(i)].insert(i + 1);
    std::vector<std::vector<int>> later(ops.size());
    std::vector<std::size_t> missing(ops.size());
    std::set<std::pair<bool, int>> ready;  // (runs on nodes, number): the largest comes next
    const auto make_ready = [&](int i) {
        ready.emplace(ops[at(i)]->forward_space == IterationSpace::nodes, i);
    };
    for (int i = 0; i < count; ++i) {
        for (const int other : must_precede[at(i)]) later[at(other)].push_back(i);
        missing[at(i)] = must_precede[at(i)].size();
        if (missing[at(i)] == 0) make_ready(i);
    }
    while (!ready.empty()) {
        const int next = ready.rbegin()->second;
        ready.erase(std::prev(ready.end()));
        backward_order_.push_back(next);
        for (const int i : later[at(next)])
            if (--missing[at(i)] == 0) make_ready(i);
    }
}

void Program::group_forward() {
    std::set<int> written;  // by the current stage
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        OpSpec& op = *ops[at(i)];
        const IterationSpace space = op.forward_space;
        bool joins = stages_ == Stages::shared && !forward_stages.empty() &&
                     !is_single_call(space) && !is_single_call(forward_stages.back().space) &&
                     forward_stages.back().over_ghosts == (over_ghosts_[at(i)] != 0);
        if (joins && space == IterationSpace::receivers)
            for (const Operand& input : op.inputs) joins = joins && written.count(input.id) == 0;
        if (!joins) {
            written.clear();
            forward_stages.emplace_back();
            forward_stages.back().over_ghosts = over_ghosts_[at(i)] != 0;
        }
        Stage& stage = forward_stages.back();
        stage.ops.push_back(i);
        if (space != IterationSpace::nodes) stage.space = space;
        for (const Operand& output : op.outputs) written.insert(output.id);
    }
}

void Program::group_backward() {
    std::set<int> written;  // gradients written by the current stage
    for (const int i : backward_order_) {
        if (!backward_active[at(i)]) continue;
        OpSpec& op = *ops[at(i)];
        const IterationSpace space = op.backward_space();
        bool joins = stages_ == Stages::shared && !backward_stages.empty() &&
                     !is_single_call(space) && !is_single_call(backward_stages.back().space);
        // two threads must not write the gradient of one edge
        if (joins && space != IterationSpace::nodes &&
            backward_stages.back().space != IterationSpace::nodes)
            joins = space == backward_stages.back().space;
        if (joins && space == IterationSpace::sender_blocks)
            for (const Operand& output : op.outputs) joins = joins && written.count(output.id) == 0;
        if (!joins) {
            written.clear();
            backward_stages.emplace_back();
        }
        Stage& stage = backward_stages.back();
        stage.ops.push_back(i);
        if (space != IterationSpace::nodes) stage.space = space;
        for (const Operand& input : op.inputs)
            if (input.needs_gradient) written.insert(input.id);
    }
}

// With `beside`, an operation on nodes may run at any time between the last write of its inputs and
// the first read of its outputs, but after earlier operations that write these outputs, and not
// past the nearest operation on edges on either side. In the backward pass it reads gradients of
// its outputs and writes gradients of its inputs. It may run as early as the stage `earliest`,
// because operations that write the gradients it reads may be early, too.
std::vector<Program::Window> Program::windows(const std::vector<int>& stage_of, int earliest,
                                              bool backward, bool beside) const {
    std::vector<Window> found(ops.size());
    std::set<int> used, edges;  // all stages, and the stages of operations on edges
    const auto on_nodes = [&](std::size_t i) {
        return beside && ops[i]->forward_space == IterationSpace::nodes;
    };
    for (std::size_t i = 0; i < ops.size(); ++i) {
        found[i] = {stage_of[i], stage_of[i]};
        if (stage_of[i] >= 0) used.insert(stage_of[i]);
        if (!on_nodes(i) && ops[i]->forward_space != IterationSpace::exchange)
            edges.insert(stage_of[i]);
    }
    if (!beside) return found;
    std::vector<std::set<int>> users(values.size());  // stages at which a value is used
    for (std::size_t id = 0; id < values.size(); ++id) {
        for (const int writer : values[id].writers) users[id].insert(stage_of[at(writer)]);
        for (const int reader : values[id].readers) users[id].insert(stage_of[at(reader)]);
    }
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const int own = stage_of[i];
        if (own < 0 || !on_nodes(i)) continue;
        Window& window = found[i];
        window = {earliest, *used.rbegin()};
        const auto between = [&](int before, int after) {
            if (before >= 0) window.begin = std::max(window.begin, before + 1);
            if (after >= 0) window.end = std::min(window.end, after - 1);
        };
        const auto between_users = [&](int id) {
            const std::set<int>& stages = users[at(id)];
            const auto next = stages.upper_bound(own);
            const auto same = stages.lower_bound(own);
            between(backward || same == stages.begin() ? -1 : *std::prev(same),
                    next == stages.end() ? -1 : *next);
        };
        for (const Operand& input : ops[i]->inputs)
            if (backward)
                between_users(input.id);
            else
                between(stage_of[at(values[at(input.id)].last_writer())], -1);
        // in the backward pass later users of gradients of outputs only read them
        for (const Operand& output : ops[i]->outputs)
            if (!backward) between_users(output.id);
        const auto next = edges.lower_bound(own);
        if (next != edges.end()) window.end = std::min(window.end, *next);
        if (next != edges.begin()) window.begin = std::max(window.begin, *std::prev(next));
    }
    return found;
}

// Whether a value has one reader, which writes the value's gradient over the value. On CPUs the
// chunks of a stage share buffers, and each matrix has its own.
bool Program::has_gradient_in_place(const Value& value) const {
    if (stages_ == Stages::shared || value.readers.size() != 1 || value.ghost_gradient)
        return false;
    for (const Operand& input : ops[at(value.readers.front())]->inputs)
        if (&values[at(input.id)] == &value && input.gradient_in_place) return true;
    return false;
}

BufferPlan Program::plan(PlanKind kind) {
    const bool with_gradient = kind != PlanKind::energy, beside = kind == PlanKind::streams;
    BufferPlan plan;
    plan.values.resize(values.size());
    plan.gradients.resize(values.size());
    const int num_forward = static_cast<int>(forward_stages.size());
    // for each operation: its stages, and its step, counted through forward and backward pass
    std::vector<int> stage_of(ops.size(), -1), back_stage_of(ops.size(), -1);
    std::vector<int> back_step(ops.size(), -1);
    for (int s = 0; s < num_forward; ++s)
        for (const int i : forward_stages[at(s)].ops) stage_of[at(i)] = s;
    int step = static_cast<int>(ops.size());
    if (with_gradient)
        for (int s = 0; s < static_cast<int>(backward_stages.size()); ++s)
            for (const int i : backward_stages[at(s)].ops) {
                back_stage_of[at(i)] = num_forward + s;
                back_step[at(i)] = step++;
            }

    // the backward pass of readouts may begin after the last stage that is not on nodes alone
    int after_edges = 0;
    for (int s = 0; s < num_forward; ++s)
        if (forward_stages[at(s)].space != IterationSpace::nodes) after_edges = s + 1;
    const std::vector<Window> forward = windows(stage_of, 0, false, beside);
    const std::vector<Window> backward = windows(back_stage_of, after_edges, true, beside);

    std::vector<int> saved_until(values.size(), -1);  // the last backward stage that needs a value
    for (std::size_t i = 0; i < ops.size(); ++i)
        if (back_stage_of[i] >= 0)
            for (const Operand& input : ops[i]->inputs)
                if (input.saved_for_backward)
                    saved_until[at(input.id)] =
                        std::max(saved_until[at(input.id)], backward[i].end);

    std::vector<Interval> chunk, local, total;
    const auto add = [&](BufferSlot& slot, Interval stages, Interval steps, bool global,
                         bool ghosts) {
        slot.kind = !global ? BufferSlot::chunk : ghosts ? BufferSlot::total : BufferSlot::local;
        if (slot.kind == BufferSlot::chunk) chunk.push_back(steps);
        if (slot.kind == BufferSlot::local) local.push_back(stages);
        if (slot.kind == BufferSlot::total) total.push_back(stages);
    };
    for (int id = 0; id < static_cast<int>(values.size()); ++id) {
        const Value& value = values[at(id)];
        if (value.writers.empty()) continue;
        const std::int64_t width = value.rows.width;
        // the previous operation may write this value and read its gradient: see only_reader
        const int last_writer = value.last_writer();
        int first = value.writers.front();
        if (first > 0 && ops[at(first - 1)]->only_reader == ops[at(first)].get()) --first;
        Interval stages{id, false, width, forward[at(first)].begin, forward[at(last_writer)].end};
        Interval steps{id, false, width, first, last_writer};
        bool global = value.gathered;
        for (const int reader : value.readers) {
            stages.end = std::max(stages.end, forward[at(reader)].end);
            steps.end = std::max(steps.end, reader);
        }
        const bool saved = saved_until[at(id)] >= 0;
        stages.end = std::max(stages.end, saved_until[at(id)]);
        // descriptors are copied when their stage ends
        if (std::find(descriptors.begin(), descriptors.end(), id) != descriptors.end())
            steps.end = static_cast<int>(ops.size());
        global = global || saved || stages.end != stages.begin;
        const bool ghosts = value.gathered || over_ghosts_[at(last_writer)];
        add(plan.values[at(id)], stages, steps, global, ghosts);

        if (!with_gradient || !value.has_gradient) continue;
        std::vector<int> users = value.writers;  // users of the gradient in the backward pass
        if (first != users.front()) users.push_back(first);
        users.erase(std::remove_if(users.begin(), users.end(),
                                   [&](int i) { return back_stage_of[at(i)] < 0; }),
                    users.end());
        const int one = users.front();
        stages = {id, true, width, backward[at(one)].begin, backward[at(one)].end};
        steps = {id, true, width, back_step[at(one)], back_step[at(one)]};
        int zeroed = back_stage_of[at(one)];
        for (const int user : users) {
            stages.begin = std::min(stages.begin, backward[at(user)].begin);
            stages.end = std::max(stages.end, backward[at(user)].end);
            steps.begin = std::min(steps.begin, back_step[at(user)]);
            steps.end = std::max(steps.end, back_step[at(user)]);
            zeroed = std::min(zeroed, back_stage_of[at(user)]);
        }
        global = value.ghost_gradient ||
                 ops[at(last_writer)]->backward_space() == IterationSpace::sender_blocks;
        for (const int reader : value.readers) {
            if (back_stage_of[at(reader)] < 0) continue;
            stages.begin = std::min(stages.begin, backward[at(reader)].begin);
            zeroed = std::min(zeroed, back_stage_of[at(reader)]);
            steps.begin = std::min(steps.begin, back_step[at(reader)]);
        }
        global = global || stages.begin != stages.end;
        if (plan.values[at(id)].kind == BufferSlot::local && has_gradient_in_place(value)) {
            plan.gradients[at(id)].kind = BufferSlot::local;  // the offset is that of the value
            local.back().end = std::max(local.back().end, stages.end);
        } else {
            add(plan.gradients[at(id)], stages, steps, global, value.ghost_gradient);
        }
        if (value.ghost_gradient && !beside)  // this stage is the first that adds to it
            backward_stages[at(zeroed - num_forward)].zeroed.push_back(id);
    }
    // Operations on edges use the memory behind the local rows in use as scratch memory (see
    // CudaExecutor::reserve), so rows that are not in use then come last.
    std::vector<char> on_edges;
    for (const auto* stages : {&forward_stages, &backward_stages})
        for (const Stage& stage : *stages) {
            if (stages == &backward_stages && !with_gradient) break;
            on_edges.push_back(stage.space != IterationSpace::nodes && !stage.exchanges());
        }
    for (Interval& rows : local)
        for (int s = rows.begin; s <= rows.end && stages_ == Stages::separate; ++s)
            rows.on_edges = rows.on_edges || on_edges[at(s)] != 0;
    std::vector<Placed> placed;
    plan.chunk_width = arrange(chunk, plan, placed);
    plan.total_width = arrange(total, plan, placed);
    plan.local_width = arrange(local, plan, placed);
    for (std::size_t id = 0; id < values.size(); ++id)
        if (plan.values[id].kind == BufferSlot::local &&
            plan.gradients[id].kind == BufferSlot::local && has_gradient_in_place(values[id]))
            plan.gradients[id].offset = plan.values[id].offset;
    plan.local_in_use.assign(on_edges.size(), 0);
    for (const Placed& rows : placed)
        for (int s = rows.interval.begin; s <= rows.interval.end; ++s)
            plan.local_in_use[at(s)] = std::max(plan.local_in_use[at(s)], rows.end());
    return plan;
}

}  // namespace mdcg
