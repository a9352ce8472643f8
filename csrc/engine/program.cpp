#include "engine/program.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "engine/error.hpp"
#include "engine/limits.hpp"
#include "engine/registry.hpp"

namespace mdcg {

namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

// What the fields of one layer may name.
class Spec : public LayerSpec {
public:
    Spec(Fields fields, const ModelInfo& info, int index, std::string type,
         const std::map<std::string, int>& ids, const std::vector<Rows>& rows)
        : LayerSpec(std::move(fields), info, index, std::move(type)), ids_(ids), rows_(rows) {}

    Operand operand(const Fields& fields, const char* key) const override {
        return find(fields, key, fields.text(key));
    }
    std::vector<Operand> operands(const Fields& fields, const char* key) const override {
        std::vector<Operand> found;
        for (const std::string& name : fields.texts(key)) found.push_back(find(fields, key, name));
        return found;
    }

private:
    Operand find(const Fields& fields, const char* key, const std::string& name) const {
        const auto found = ids_.find(name);
        if (found == ids_.end())
            fields.fail(key, "\"" + name + "\"", "a name that \"values\" lists");
        Operand operand;
        operand.id = found->second;
        operand.rows = rows_[at(found->second)];
        return operand;
    }

    const std::map<std::string, int>& ids_;
    const std::vector<Rows>& rows_;
};

bool contains(const std::vector<int>& ids, int id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

template <typename T>
Program<T>::Program(const Package& package, const ModelInfo& info) : find_(&find_layer<T>) {
    build(package, info);
}

template <typename T>
Program<T>::Program(const Package& package, const ModelInfo& info,
                    LayerFactory<T> (*find)(const std::string&), const std::string& device)
    : find_(find), device_(device) {
    build(package, info);
}

template <typename T>
void Program<T>::build(const Package& package, const ModelInfo& info) {
    build_layers(package, info);
    connect(package);
    check_ghosts(package);
    find_gradients();
    group_forward();
    group_backward();
    energy_plan = plan(false);
    gradient_plan = plan(true);
}

template <typename T>
void Program<T>::unknown(const Package& package, std::size_t layer, const std::string& type) const {
    std::string known;
    for (const std::string& name : layer_types()) known += (known.empty() ? "" : ", ") + name;
    const std::string what =
        package.path() + ": layer " + std::to_string(layer) + " has type " + type;
    if (find_layer<T>(type) == nullptr)
        throw EngineError(ErrorKind::unsupported, what + ", this version of mdcg knows " + known);
    throw EngineError(ErrorKind::unsupported, what +
                                                  ", which this version of mdcg does not "
                                                  "evaluate on " +
                                                  device_ + ": use device cpu");
}

template <typename T>
void Program<T>::build_layers(const Package& package, const ModelInfo& info) {
    constexpr std::size_t MAX_LAYERS = limits::MAX_LAYERS;
    const Fields manifest(package.manifest(), package, "manifest");
    const auto& listed = manifest.json("values");
    if (!listed.is_object()) manifest.fail("values", "no object", "names with their irreps");
    if (listed.size() > MAX_LAYERS)
        manifest.fail("values", std::to_string(listed.size()) + " values",
                      "at most " + std::to_string(MAX_LAYERS));
    std::map<std::string, int> ids;
    std::vector<Rows> rows;
    for (const auto& [name, irreps] : listed.items()) {
        Value value;
        value.name = name;
        if (!irreps.is_string())
            manifest.fail("values", "no irreps for \"" + name + "\"", "such as \"128x0e\"");
        try {
            value.rows = Rows::parse(irreps.template get<std::string>(), row_align<T>());
        } catch (const std::invalid_argument& error) {
            manifest.fail("value \"" + name + "\" has " + error.what());
        }
        ids.emplace(name, static_cast<int>(values.size()));
        rows.push_back(value.rows);
        values.push_back(std::move(value));
    }
    const std::vector<Fields> entries = manifest.objects("layers");
    if (entries.empty() || entries.size() > MAX_LAYERS)
        manifest.fail("layers", std::to_string(entries.size()) + " layers",
                      "1 to " + std::to_string(MAX_LAYERS));
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const std::string type = entries[i].text("type");
        Fields fields(manifest.json("layers")[i], package,
                      "layer " + std::to_string(i) + " (" + type + ")");
        const LayerFactory<T> make = find_(type);
        if (make == nullptr) unknown(package, i, type);
        const std::string name = fields.text("name", type);
        const Spec spec(fields, info, static_cast<int>(i), type, ids, rows);
        try {
            layers.push_back(make(spec));
        } catch (const std::invalid_argument& error) {
            fields.fail(error.what());
        }
        layers.back()->name = name;
    }
    if (manifest.has("descriptors"))
        for (const std::string& name : manifest.texts("descriptors")) {
            if (ids.count(name) == 0 || contains(descriptors, ids[name]))
                manifest.fail("descriptors", "\"" + name + "\"",
                              "different names that \"values\" lists");
            descriptors.push_back(ids[name]);
            descriptor_width += values[at(ids[name])].rows.features;
            if (descriptor_width > limits::MAX_ROW_ITEMS)  // below 2^25 here: no overflow
                manifest.fail("descriptors",
                              "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " numbers",
                              "fewer");
        }
}

// Single assignment: every value is written once, by a layer before those that read it.
template <typename T>
void Program<T>::connect(const Package& package) {
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
        Layer<T>& layer = *layers[at(i)];
        const std::string where = "layer " + std::to_string(i) + " (" + layer.name + ")";
        bool moves = layer.forward_walk() == Walk::receivers;
        for (const Operand* input : layer.inputs()) {
            Value& value = values[at(input->id)];
            if (value.writer < 0)
                package.fail(where + " reads \"" + value.name +
                             "\" before any layer has written it");
            moves = moves || value.depends_on_positions;
            value.readers.push_back(i);
        }
        for (const Operand* output : layer.outputs()) {
            Value& value = values[at(output->id)];
            if (value.writer >= 0)
                package.fail(where + " writes \"" + value.name + "\", which layer " +
                             std::to_string(value.writer) + " has written, expected one writer");
            if (contains(value.readers, i))
                package.fail(where + " reads and writes \"" + value.name + "\"");
            value.writer = i;
            value.depends_on_positions = moves;
        }
        if (layer.forward_walk() == Walk::all) {
            ++num_exchanges;
            for (const Operand* input : layer.inputs())
                max_exchanged_width = std::max(max_exchanged_width, input->rows.width);
        }
    }
    for (const int id : descriptors)
        if (values[at(id)].writer < 0)
            package.fail("descriptor \"" + values[at(id)].name + "\" is written by no layer");
}

// What is read at senders has been exchanged, or follows from types and is found for ghosts too.
template <typename T>
void Program<T>::check_ghosts(const Package& package) {
    over_ghosts_.assign(layers.size(), 0);
    std::vector<char> exchanged(values.size(), 0);
    std::vector<int> wanted;
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
        Layer<T>& layer = *layers[at(i)];
        if (layer.forward_walk() == Walk::all)
            for (const Operand* input : layer.inputs()) {
                exchanged[at(input->id)] = 1;
                values[at(input->id)].gathered = true;
            }
        for (const int id : layer.gathered()) {
            Value& value = values[at(id)];
            value.gathered = true;
            if (exchanged[at(id)]) continue;
            if (value.depends_on_positions)
                package.fail("layer " + std::to_string(i) + " (" + layer.name + ") reads \"" +
                             value.name +
                             "\" of neighbours, expected an exchange layer for it before");
            wanted.push_back(value.writer);
        }
    }
    while (!wanted.empty()) {
        const int i = wanted.back();
        wanted.pop_back();
        if (over_ghosts_[at(i)]) continue;
        over_ghosts_[at(i)] = 1;
        for (const Operand* input : layers[at(i)]->inputs())
            wanted.push_back(values[at(input->id)].writer);
    }
}

// A gradient flows where a value depends on positions and the energy depends on it.
template <typename T>
void Program<T>::find_gradients() {
    backward_active.assign(layers.size(), 0);
    std::vector<char> seen(values.size(), 0);
    for (int i = static_cast<int>(layers.size()) - 1; i >= 0; --i) {
        Layer<T>& layer = *layers[at(i)];
        const std::vector<Operand*> outputs = layer.outputs();
        bool active = outputs.empty() && layer.forward_walk() != Walk::all;
        for (Operand* output : outputs) {
            output->needs_gradient = values[at(output->id)].has_gradient;
            active = active || output->needs_gradient;
        }
        if (layer.forward_walk() == Walk::all) {
            for (Operand* input : layer.inputs()) {
                input->needs_gradient = values[at(input->id)].has_gradient;
                active = active || input->needs_gradient;
            }
            backward_active[at(i)] = active;
            continue;
        }
        for (Operand* input : layer.inputs()) {
            Value& value = values[at(input->id)];
            input->needs_gradient = active && value.depends_on_positions;
            if (!input->needs_gradient) continue;
            value.has_gradient = true;
            input->accumulate = seen[at(input->id)] != 0;
            seen[at(input->id)] = 1;
        }
        bool moves = layer.forward_walk() == Walk::receivers;
        for (const Operand* input : layer.inputs()) moves = moves || input->needs_gradient;
        backward_active[at(i)] = active && moves;
    }
}

template <typename T>
void Program<T>::group_forward() {
    std::set<int> written;  // by the present stage
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
        Layer<T>& layer = *layers[at(i)];
        const Walk walk = layer.forward_walk();
        bool joins = device_.empty() && !forward_stages.empty() && walk != Walk::all &&
                     forward_stages.back().walk != Walk::all &&
                     forward_stages.back().over_ghosts == (over_ghosts_[at(i)] != 0);
        if (joins && walk == Walk::receivers)
            for (const Operand* input : layer.inputs())
                joins = joins && written.count(input->id) == 0;
        if (!joins) {
            written.clear();
            forward_stages.emplace_back();
            forward_stages.back().over_ghosts = over_ghosts_[at(i)] != 0;
        }
        Stage& stage = forward_stages.back();
        stage.layers.push_back(i);
        if (walk != Walk::nodes) stage.walk = walk;
        for (const Operand* output : layer.outputs()) written.insert(output->id);
    }
}

template <typename T>
void Program<T>::group_backward() {
    std::set<int> written, of_ghosts;  // gradients; those whose rows of ghosts have been begun
    for (int i = static_cast<int>(layers.size()) - 1; i >= 0; --i) {
        if (!backward_active[at(i)]) continue;
        Layer<T>& layer = *layers[at(i)];
        const Walk walk = layer.backward_walk();
        bool joins = device_.empty() && !backward_stages.empty() && walk != Walk::all &&
                     backward_stages.back().walk != Walk::all;
        // an edge's gradient has one writer at a time
        if (joins && walk != Walk::nodes && backward_stages.back().walk != Walk::nodes)
            joins = walk == backward_stages.back().walk;
        if (joins && walk == Walk::sender_blocks)
            for (const Operand* output : layer.outputs())
                joins = joins && written.count(output->id) == 0;
        if (!joins) {
            written.clear();
            backward_stages.emplace_back();
        }
        Stage& stage = backward_stages.back();
        stage.layers.push_back(i);
        if (walk != Walk::nodes) stage.walk = walk;
        for (const Operand* input : layer.inputs()) {
            if (!input->needs_gradient) continue;
            written.insert(input->id);
            if (walk != Walk::sender_blocks) continue;
            if (of_ghosts.insert(input->id).second && input->accumulate)
                stage.added.push_back(input->id);
        }
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

template <typename T>
BufferPlan Program<T>::plan(bool with_gradient) {
    BufferPlan plan;
    plan.values.resize(values.size());
    plan.gradients.resize(values.size());
    const int num_forward = static_cast<int>(forward_stages.size());
    // time of every layer: its stage, and its step (all layers, forward then backward)
    std::vector<int> stage_of(layers.size(), -1), back_stage_of(layers.size(), -1);
    std::vector<int> back_step(layers.size(), -1);
    for (int s = 0; s < num_forward; ++s)
        for (const int i : forward_stages[at(s)].layers) stage_of[at(i)] = s;
    int step = static_cast<int>(layers.size());
    if (with_gradient)
        for (int s = 0; s < static_cast<int>(backward_stages.size()); ++s)
            for (const int i : backward_stages[at(s)].layers) {
                back_stage_of[at(i)] = num_forward + s;
                back_step[at(i)] = step++;
            }

    std::vector<int> kept_until(values.size(), -1);  // the last backward stage that needs a value
    for (std::size_t i = 0; i < layers.size(); ++i)
        if (back_stage_of[i] >= 0)
            for (const int id : layers[i]->kept())
                kept_until[at(id)] = std::max(kept_until[at(id)], back_stage_of[i]);

    std::vector<Interval> chunk, local, total;
    const auto add = [&](Place& place, Interval stages, Interval steps, bool global, bool ghosts) {
        place.kind = !global ? Place::chunk : ghosts ? Place::total : Place::local;
        if (place.kind == Place::chunk) chunk.push_back(steps);
        if (place.kind == Place::local) local.push_back(stages);
        if (place.kind == Place::total) total.push_back(stages);
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
        const bool kept = kept_until[at(id)] >= 0;
        stages.end = std::max(stages.end, kept_until[at(id)]);
        // descriptors are copied when their stage ends
        if (contains(descriptors, id)) steps.end = static_cast<int>(layers.size());
        global = global || kept || stages.end != stages.begin;
        const bool ghosts = value.gathered || over_ghosts_[at(value.writer)];
        add(plan.values[at(id)], stages, steps, global, ghosts);

        if (!with_gradient || !value.has_gradient) continue;
        stages = {id, true, width, back_stage_of[at(value.writer)],
                  back_stage_of[at(value.writer)]};
        steps = {id, true, width, back_step[at(value.writer)], back_step[at(value.writer)]};
        global = value.gathered || layers[at(value.writer)]->backward_walk() == Walk::sender_blocks;
        for (const int reader : value.readers) {
            if (back_stage_of[at(reader)] < 0) continue;
            stages.begin = std::min(stages.begin, back_stage_of[at(reader)]);
            steps.begin = std::min(steps.begin, back_step[at(reader)]);
        }
        global = global || stages.begin != stages.end;
        add(plan.gradients[at(id)], stages, steps, global, value.gathered);
    }
    plan.chunk_width = arrange(chunk, plan);
    plan.local_width = arrange(local, plan);
    plan.total_width = arrange(total, plan);
    return plan;
}

template class Program<float>;
template class Program<double>;

}  // namespace mdcg
