#include "engine/program.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "core/integers.hpp"
#include "engine/error.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

std::size_t at(int i) { return size(i); }

// Does it end in the energy, in place of a value.
bool gives_energy(const OpSpec& op) {
    return op.outputs.empty() && op.forward_space != IterationSpace::exchange;
}

[[noreturn]] void unknown_op(const std::string& path, std::size_t layer, const std::string& type) {
    std::string known;
    for (const auto& [name, op] : op_types()) known += (known.empty() ? "" : ", ") + name;
    throw EngineError(ErrorKind::unsupported, path + ": layer " + std::to_string(layer) +
                                                  " has type " + type +
                                                  ", this version of mdcg knows " + known);
}

bool contains(const std::vector<int>& ids, int id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Program::Program(const Package& package, const ModelInfo& info, Stages stages)
    : stages_(stages), align_(info.double_precision ? row_align<double>() : row_align<float>()) {
    read_values(package, info);
    read_ops(package, info);
    connect(package);
    check_ghosts(package);
    find_gradients();
    group_forward();
    group_backward();
    energy_plan = plan(false);
    gradient_plan = plan(true);
}

void Program::read_values(const Package& package, const ModelInfo& info) {
    const Fields manifest(package.manifest(), package, "manifest");
    const auto& listed = manifest.json("values");
    if (!listed.is_object()) manifest.fail("values", "no object", "names with their irreps");
    if (listed.size() > limits::MAX_LAYERS)
        manifest.fail("values", std::to_string(listed.size()) + " values",
                      "at most " + std::to_string(limits::MAX_LAYERS));
    std::map<std::string, const Rows*> sizes;
    for (const auto& [name, irreps] : listed.items()) {
        if (!irreps.is_string())
            manifest.fail("values", "no irreps for \"" + name + "\"", "such as \"128x0e\"");
        Value value;
        value.name = name;
        try {
            value.rows = Rows::parse(irreps.get<std::string>(), align_);
        } catch (const std::invalid_argument& error) {
            manifest.fail("value \"" + name + "\" has " + error.what());
        }
        values.push_back(std::move(value));
    }
    for (const Value& value : values) sizes.emplace(value.name, &value.rows);
    budget = check_memory(package, info, size(64 / align_), sizes);
}

void Program::read_ops(const Package& package, ModelInfo info) {
    info.layer_tables = budget.layer_tables;
    std::map<std::string, Operand> operands;
    for (std::size_t id = 0; id < values.size(); ++id) {
        Operand& operand = operands[values[id].name];
        operand.id = static_cast<int>(id);
        operand.rows = values[id].rows;
    }
    const Fields manifest(package.manifest(), package, "manifest");
    const std::vector<Fields> entries = manifest.objects("layers");
    if (entries.empty() || entries.size() > limits::MAX_LAYERS)
        manifest.fail("layers", std::to_string(entries.size()) + " layers",
                      "1 to " + std::to_string(limits::MAX_LAYERS));
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::string type = entries[i].text("type");
        const auto found = op_types().find(type);
        if (found == op_types().end() || found->second.read == nullptr)
            unknown_op(package.path(), i, type);
        const Fields fields(manifest.json("layers")[i], package,
                            "layer " + std::to_string(i) + " (" + type + ")");
        try {
            ops.push_back(found->second.read({fields, info, operands, static_cast<int>(i)}));
        } catch (const std::invalid_argument& error) {
            fields.fail(error.what());
        }
    }
    has_energy =
        std::any_of(ops.begin(), ops.end(), [](const auto& op) { return gives_energy(*op); });
    if (!manifest.has("descriptors")) return;
    for (const std::string& name : manifest.texts("descriptors")) {
        const auto found = operands.find(name);
        if (found == operands.end() || contains(descriptors, found->second.id))
            manifest.fail("descriptors", "\"" + name + "\"",
                          "different names that \"values\" lists");
        descriptors.push_back(found->second.id);
        descriptor_width += found->second.rows.features;
        if (descriptor_width > limits::MAX_ROW_ITEMS)  // below 2^25 here: no overflow
            manifest.fail("descriptors",
                          "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " numbers",
                          "fewer");
    }
}

// Single assignment: every value is written once, by a layer before those that read it.
void Program::connect(const Package& package) {
    int first = -1;  // of the operations that see positions
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        OpSpec& op = *ops[at(i)];
        const std::string where = this->where(i);
        bool moves = op.reads_positions();
        if (moves) {
            if (first < 0) first = i;
            if (op.reads_points() != ops[at(first)]->reads_points())
                package.fail(this->where(first) + " and " + where +
                             " are in one network, expected layers that see edges, or layers that "
                             "see distant points");
            reads_points = op.reads_points();
        }
        for (const Operand& input : op.inputs) {
            Value& value = values[at(input.id)];
            if (value.writer < 0)
                package.fail(where + " reads \"" + value.name +
                             "\" before any layer has written it");
            moves = moves || value.depends_on_positions;
            value.readers.push_back(i);
        }
        for (const Operand& output : op.outputs) {
            Value& value = values[at(output.id)];
            if (value.writer >= 0)
                package.fail(where + " writes \"" + value.name + "\", which layer " +
                             std::to_string(value.writer) + " has written, expected one writer");
            if (contains(value.readers, i))
                package.fail(where + " reads and writes \"" + value.name + "\"");
            value.writer = i;
            value.depends_on_positions = moves;
        }
        if (op.forward_space == IterationSpace::exchange) {
            ++num_exchanges;
            for (const Operand& input : op.inputs)
                max_exchanged_width = std::max(max_exchanged_width, input.rows.width);
        }
    }
    for (const int id : descriptors)
        if (values[at(id)].writer < 0)
            package.fail("descriptor \"" + values[at(id)].name + "\" is written by no layer");
    for (std::size_t i = 0; i + 1 < ops.size(); ++i)
        if (ops[i]->outputs.size() == 1) {
            const int id = ops[i]->outputs[0].id;
            if (values[at(id)].readers == std::vector<int>{narrow(i + 1)} &&
                !contains(descriptors, id))
                ops[i]->only_reader = ops[i + 1].get();
        }
}

std::string Program::where(int layer) const {
    return "layer " + std::to_string(layer) + " (" + ops[at(layer)]->name + ")";
}

// Layers on which an energy or a descriptor depends.
std::vector<char> Program::find_active() const {
    std::vector<char> is_active(ops.size(), 0);
    for (int i = static_cast<int>(ops.size()) - 1; i >= 0; --i) {
        const OpSpec& op = *ops[at(i)];
        bool found = gives_energy(op);
        for (const Operand& output : op.outputs) {
            found = found || contains(descriptors, output.id);
            for (const int reader : values[at(output.id)].readers)
                found = found || is_active[at(reader)];
        }
        is_active[at(i)] = found;
    }
    return is_active;
}

// What is read at senders has been exchanged, or follows from types and is found for ghosts too. A
// value is exchanged once at most, before all that is read at senders, and for a layer that counts:
// so the gradients of its ghosts are whole where the backward pass comes to the exchange.
void Program::check_ghosts(const Package& package) {
    over_ghosts_.assign(ops.size(), 0);
    const std::vector<char> is_active = find_active();
    std::vector<int> exchange(values.size(), -1), reader(values.size(), -1);  // operations
    std::vector<char> used(values.size(), 0);  // by an operation that is active
    std::vector<int> wanted;
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        OpSpec& op = *ops[at(i)];
        if (op.forward_space == IterationSpace::exchange)
            for (const Operand& input : op.inputs) {
                const std::size_t id = at(input.id);
                const std::string what = where(i) + " exchanges \"" + values[id].name + "\"";
                if (exchange[id] >= 0)
                    package.fail(what + ", which " + where(exchange[id]) +
                                 " has exchanged, expected once: remove the second");
                if (reader[id] >= 0)
                    package.fail(what + " after " + where(reader[id]) +
                                 " has read it of neighbours, expected before: move it there");
                exchange[id] = i;
                values[id].gathered = true;
            }
        for (const Operand& input : op.inputs) {
            if (!input.gathered) continue;
            const int id = input.id;
            Value& value = values[at(id)];
            value.gathered = true;
            reader[at(id)] = i;
            used[at(id)] = used[at(id)] || is_active[at(i)];
            if (exchange[at(id)] >= 0) continue;
            if (value.depends_on_positions)
                package.fail(where(i) + " reads \"" + value.name +
                             "\" of neighbours, expected an exchange layer for it before");
            wanted.push_back(value.writer);
        }
    }
    for (std::size_t id = 0; id < values.size(); ++id) {
        if (exchange[id] < 0 || used[id]) continue;
        const std::string what = where(exchange[id]) + " exchanges \"" + values[id].name + "\"";
        if (reader[id] < 0)
            package.fail(what + ", which no layer reads of neighbours: remove the exchange");
        package.fail(what + " for " + where(reader[id]) +
                     ", on which no energy and no descriptor depends: remove both");
    }
    while (!wanted.empty()) {
        const int i = wanted.back();
        wanted.pop_back();
        if (over_ghosts_[at(i)]) continue;
        over_ghosts_[at(i)] = 1;
        for (const Operand& input : ops[at(i)]->inputs)
            wanted.push_back(values[at(input.id)].writer);
    }
}

// A gradient flows where a value depends on positions and the energy depends on it.
void Program::find_gradients() {
    backward_active.assign(ops.size(), 0);
    std::vector<char> seen(values.size(), 0);
    for (int i = static_cast<int>(ops.size()) - 1; i >= 0; --i) {
        OpSpec& op = *ops[at(i)];
        bool active = gives_energy(op);
        for (Operand& output : op.outputs) {
            output.needs_gradient = values[at(output.id)].has_gradient;
            active = active || output.needs_gradient;
        }
        if (op.forward_space == IterationSpace::exchange) {
            for (Operand& input : op.inputs) {
                input.needs_gradient = values[at(input.id)].ghost_gradient;
                active = active || input.needs_gradient;
            }
            backward_active[at(i)] = active;
            continue;
        }
        for (Operand& input : op.inputs) {
            Value& value = values[at(input.id)];
            input.needs_gradient = active && value.depends_on_positions;
            if (!input.needs_gradient) continue;
            value.has_gradient = true;
            value.ghost_gradient =
                value.ghost_gradient || (input.gathered && !input.whole_gradient);
            input.accumulate = seen[at(input.id)] != 0;
            seen[at(input.id)] = 1;
        }
        bool moves = op.reads_positions();
        for (const Operand& input : op.inputs) moves = moves || input.needs_gradient;
        backward_active[at(i)] = active && moves;
    }
}

void Program::group_forward() {
    std::set<int> written;  // by the present stage
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
    std::set<int> written;  // gradients, by the present stage
    for (int i = static_cast<int>(ops.size()) - 1; i >= 0; --i) {
        if (!backward_active[at(i)]) continue;
        OpSpec& op = *ops[at(i)];
        const IterationSpace space = op.backward_space();
        bool joins = stages_ == Stages::shared && !backward_stages.empty() &&
                     !is_single_call(space) && !is_single_call(backward_stages.back().space);
        // an edge's gradient has one writer at a time
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

namespace {

// A matrix, and the first and last step at which it exists.
struct Interval {
    int id;
    bool gradient;
    std::int64_t width;
    int begin, end;
};

// Gives overlapping intervals different offsets, large ones first; returns the whole width.
std::int64_t arrange(std::vector<Interval> intervals, BufferPlan& plan) {
    std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
        if (a.width != b.width) return a.width > b.width;
        return std::make_pair(a.begin, a.id) < std::make_pair(b.begin, b.id);
    });
    struct Placed {
        Interval interval;
        std::int64_t offset;
    };
    std::vector<Placed> placed;
    std::int64_t whole = 0;
    for (const Interval& interval : intervals) {
        std::vector<std::pair<std::int64_t, std::int64_t>> taken;
        for (const Placed& other : placed)
            if (other.interval.begin <= interval.end && interval.begin <= other.interval.end)
                taken.emplace_back(other.offset, other.offset + other.interval.width);
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

void validate(const Package& package) {
    const Program program(package, read_model_info(package), Stages::shared);
    for (const Program::Value& value : program.values)
        if (value.writer < 0)
            package.fail("no layer writes the value \"" + value.name +
                         "\", expected one: remove the value");
    const auto& manifest = package.manifest();
    if (manifest.contains("dipoles")) {
        const auto& name = manifest["dipoles"];
        const auto& last = program.descriptors;
        if (last.empty() || name != program.values[at(last.back())].name ||
            manifest["values"][program.values[at(last.back())].name] != "1x1o")
            package.fail("dipoles is " + name.dump() +
                         ", expected the name of the last descriptor, of irreps 1x1o");
    } else if (!program.has_energy) {
        package.fail("no layer gives an energy, expected energy or pair_energy");
    }
    for (const auto& [name, tensor] : package.tensors())
        if (tensor.dtype != Dtype::u8)
            Fields(package.manifest(), package, "tensors").read<double>(tensor);
}

void Program::no_implementation(const Package& package, std::size_t op,
                                const std::string& device) const {
    throw EngineError(ErrorKind::unsupported, package.path() + ": layer " + std::to_string(op) +
                                                  " has type " + ops[op]->type +
                                                  ", which this version of mdcg does not "
                                                  "evaluate on " +
                                                  device + ": use device cpu");
}

BufferPlan Program::plan(bool with_gradient) {
    BufferPlan plan;
    plan.values.resize(values.size());
    plan.gradients.resize(values.size());
    const int num_forward = static_cast<int>(forward_stages.size());
    // time of every operation: its stage, and its step (all of them, forward then backward)
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

    std::vector<int> saved_until(values.size(), -1);  // the last backward stage that needs a value
    for (std::size_t i = 0; i < ops.size(); ++i)
        if (back_stage_of[i] >= 0)
            for (const Operand& input : ops[i]->inputs)
                if (input.saved_for_backward)
                    saved_until[at(input.id)] =
                        std::max(saved_until[at(input.id)], back_stage_of[i]);

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
        if (value.writer < 0) continue;
        const std::int64_t width = value.rows.width;
        Interval stages{id, false, width, stage_of[at(value.writer)], stage_of[at(value.writer)]};
        Interval steps{id, false, width, value.writer, value.writer};
        bool global = value.gathered;
        for (const int reader : value.readers) {
            stages.end = std::max(stages.end, stage_of[at(reader)]);
            steps.end = std::max(steps.end, reader);
        }
        const bool saved = saved_until[at(id)] >= 0;
        stages.end = std::max(stages.end, saved_until[at(id)]);
        // descriptors are copied when their stage ends
        if (contains(descriptors, id)) steps.end = static_cast<int>(ops.size());
        global = global || saved || stages.end != stages.begin;
        const bool ghosts = value.gathered || over_ghosts_[at(value.writer)];
        add(plan.values[at(id)], stages, steps, global, ghosts);

        if (!with_gradient || !value.has_gradient) continue;
        stages = {id, true, width, back_stage_of[at(value.writer)],
                  back_stage_of[at(value.writer)]};
        steps = {id, true, width, back_step[at(value.writer)], back_step[at(value.writer)]};
        global = value.ghost_gradient ||
                 ops[at(value.writer)]->backward_space() == IterationSpace::sender_blocks;
        for (const int reader : value.readers) {
            if (back_stage_of[at(reader)] < 0) continue;
            stages.begin = std::min(stages.begin, back_stage_of[at(reader)]);
            steps.begin = std::min(steps.begin, back_step[at(reader)]);
        }
        global = global || stages.begin != stages.end;
        add(plan.gradients[at(id)], stages, steps, global, value.ghost_gradient);
        if (value.ghost_gradient)  // from here on the memory is its own
            backward_stages[at(stages.begin - num_forward)].zeroed.push_back(id);
    }
    plan.chunk_width = arrange(chunk, plan);
    plan.local_width = arrange(local, plan);
    plan.total_width = arrange(total, plan);
    return plan;
}

}  // namespace mdcg
