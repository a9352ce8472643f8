#include "engine/program.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "core/integers.hpp"
#include "engine/error.hpp"
#include "engine/inputs.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

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
    merge_sums();
    connect(package);
    check_ghosts(package);
    find_backward_order();
    find_gradients();
    group_forward();
    group_backward();
    std::size_t count = 0;
    for (Stage& stage : forward_stages) stage.number = count++;
    for (Stage& stage : backward_stages) stage.number = count++;
    energy_plan = plan(PlanKind::energy);
    gradient_plan = plan(PlanKind::gradient);
    if (stages_ == Stages::separate) stream_plan = plan(PlanKind::streams);
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
    std::int64_t terms = 0;
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
        terms += ops.back()->kernel_size().terms;
        if (terms > limits::MAX_TERMS)
            manifest.fail("layers",
                          "a list with more than " + std::to_string(limits::MAX_TERMS) +
                              " terms of 3j symbols and polynomials",
                          "fewer");
    }
    measure_kernels();
    has_energy =
        std::any_of(ops.begin(), ops.end(), [](const auto& op) { return op->gives_energy(); });
    has_charges = manifest.has("charges");
    has_dipoles = manifest.has("dipoles");
    if (has_charges && has_dipoles)
        manifest.fail("dipoles", "there beside charges",
                      "one of them, which are the last descriptors");
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

// Removes sums whose terms are written by operations that can add, and are read by nothing else.
// These operations then write the sum, one after the other, in the order in which their inputs are
// complete. A sum is kept if one of its terms is written right after an operation without inputs,
// because these two operations may be fused (see only_reader).
void Program::merge_sums() {
    struct Use {
        int writer = -1, writers = 0, first_reader = -1, readers = 0;
    };
    std::vector<Use> use(values.size());
    std::vector<char> behind_source(ops.size(), 0);
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        behind_source[at(i)] = i > 0 && ops[at(i - 1)]->inputs.empty();
        for (const Operand& output : ops[at(i)]->outputs) {
            use[at(output.id)].writer = i;
            ++use[at(output.id)].writers;
        }
        for (const Operand& input : ops[at(i)]->inputs)
            if (use[at(input.id)].readers++ == 0) use[at(input.id)].first_reader = i;
    }
    // the last operation that writes an input of operation i, or i if nothing writes one of them
    const auto ready_after = [&](int i) {
        int last = -1;
        for (const Operand& input : ops[at(i)]->inputs) {
            const Use& of = use[at(input.id)];
            last = std::max(last, of.writers > 0 ? of.writer : i);
        }
        return last;
    };
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        if (!ops[at(i)]->is_sum) continue;
        const Operand& out = ops[at(i)]->outputs[0];
        bool merges = use[at(out.id)].writers == 1 &&
                      (use[at(out.id)].readers == 0 || use[at(out.id)].first_reader > i);
        std::vector<int> writers;
        for (const Operand& term : ops[at(i)]->inputs) {
            const Use& of = use[at(term.id)];
            merges = merges && of.writers == 1 && of.readers == 1 && of.writer < i &&
                     ops[at(of.writer)]->can_add && ready_after(of.writer) < of.writer &&
                     !contains(descriptors, term.id) && !behind_source[at(of.writer)];
            writers.push_back(of.writer);
        }
        if (!merges) continue;
        // Sorted by when their inputs are written, the k-th operation moves to the k-th place. It
        // stays behind its inputs.
        std::vector<int> places = writers;
        std::sort(places.begin(), places.end());
        std::stable_sort(writers.begin(), writers.end(),
                         [&](int a, int b) { return ready_after(a) < ready_after(b); });
        std::vector<std::unique_ptr<OpSpec>> terms;
        for (const int writer : writers) terms.push_back(std::move(ops[at(writer)]));
        for (std::size_t k = 0; k < terms.size(); ++k) {
            Operand& written = terms[k]->outputs[0];
            values[at(written.id)].merged = true;
            written.id = out.id;
            written.accumulate = k > 0;
            ops[at(places[k])] = std::move(terms[k]);
        }
        use[at(out.id)].writer = places.back();
        use[at(out.id)].writers = 2;  // so that it is not merged into another sum
        ops[at(i)].reset();
    }
    ops.erase(std::remove(ops.begin(), ops.end(), nullptr), ops.end());
}

// Checks that every value is written before it is read, and by one layer. (After merge_sums several
// operations may write a sum, of which all but the first add.)
void Program::connect(const Package& package) {
    int first = -1;  // the first operation that reads positions
    for (int i = 0; i < static_cast<int>(ops.size()); ++i) {
        OpSpec& op = *ops[at(i)];
        const std::string where = this->where(i);
        bool moves = op.reads_positions();
        reads_system = reads_system || op.reads_system();
        joins_systems = joins_systems && op.joins_systems;
        if (moves && !op.reads_system()) {
            if (first < 0) first = i;
            if (op.reads_points() != ops[at(first)]->reads_points())
                package.fail(this->where(first) + " and " + where +
                             " are in one network, expected layers that see edges, or layers that "
                             "see distant points");
            reads_points = op.reads_points();
        }
        for (const Operand& input : op.inputs) {
            Value& value = values[at(input.id)];
            if (value.writers.empty())
                package.fail(where + " reads \"" + value.name +
                             "\" before any layer has written it");
            moves = moves || value.depends_on_positions;
            value.readers.push_back(i);
        }
        for (const Operand& output : op.outputs) {
            Value& value = values[at(output.id)];
            if (!value.writers.empty() && !output.accumulate)
                package.fail(where + " writes \"" + value.name + "\", which layer " +
                             std::to_string(ops[at(value.last_writer())]->index) +
                             " has written, expected one writer");
            if (contains(value.readers, i))
                package.fail(where + " reads and writes \"" + value.name + "\"");
            value.writers.push_back(i);
            value.depends_on_positions = value.depends_on_positions || moves;
        }
        if (op.forward_space == IterationSpace::exchange) {
            ++num_exchanges;
            for (const Operand& input : op.inputs)
                max_exchanged_width = std::max(max_exchanged_width, input.rows.width);
        }
    }
    for (const int id : descriptors)
        if (values[at(id)].writers.empty())
            package.fail("descriptor \"" + values[at(id)].name + "\" is written by no layer");
    for (std::size_t i = 0; i + 1 < ops.size(); ++i)
        if (ops[i]->inputs.empty() && ops[i]->outputs.size() == 1) {
            const int id = ops[i]->outputs[0].id;
            const auto& next = ops[i + 1]->outputs;
            if (values[at(id)].readers == std::vector<int>{narrow(i + 1)} &&
                !contains(descriptors, id) &&
                std::none_of(next.begin(), next.end(), [](const auto& o) { return o.accumulate; }))
                ops[i]->only_reader = ops[i + 1].get();
        }
}

// Refuses kernels whose source is too long: compilers take more than twice as long for twice the
// text.
void Program::measure_kernels() {
    const auto refuse = [this](std::int64_t most, const std::string& what, std::int64_t text) {
        const auto millions = [](std::int64_t n) { return number_text(double(n) / 1e6, 3); };
        if (text > most && kernel_refusal.empty())
            kernel_refusal = "kernels are generated for up to " + millions(limits::MAX_LAYER_TEXT) +
                             " million characters of source text per layer (" +
                             millions(limits::MAX_KERNEL_TEXT) +
                             " million per package); those of " + what + " would have about " +
                             millions(text) + " million";
    };
    std::set<std::string> seen;
    for (std::size_t i = 0; i < ops.size(); ++i) {
        const KernelSize size = ops[i]->kernel_size();
        if (size.text > 0 && seen.insert(size.key).second) kernel_text += size.text;
        refuse(limits::MAX_LAYER_TEXT, "a layer of this package", size.text);
    }
    refuse(limits::MAX_KERNEL_TEXT, "this package", kernel_text);
}

std::size_t Program::num_operands() const {
    std::size_t count = 0;
    for (const auto& op : ops) count += op->inputs.size() + op->outputs.size();
    return count;
}

std::string Program::where(int layer) const {
    const OpSpec& op = *ops[at(layer)];
    return "layer " + std::to_string(op.index) + " (" + op.name + ")";
}

// Finds the operations on which an energy or a descriptor depends.
std::vector<char> Program::find_active() const {
    std::vector<char> is_active(ops.size(), 0);
    for (int i = static_cast<int>(ops.size()) - 1; i >= 0; --i) {
        const OpSpec& op = *ops[at(i)];
        bool found = op.gives_energy();
        for (const Operand& output : op.outputs) {
            found = found || contains(descriptors, output.id);
            for (const int reader : values[at(output.id)].readers)
                found = found || is_active[at(reader)];
        }
        is_active[at(i)] = found;
    }
    return is_active;
}

// Checks that values that are read at senders are exchanged before, or depend on types alone and
// are computed for ghosts too. A value is exchanged at most once, before all operations that read
// it at senders, and one of these must be active. Then the gradients of its ghosts are complete
// when the backward pass comes to the exchange.
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
            wanted.insert(wanted.end(), value.writers.begin(), value.writers.end());
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
        for (const Operand& input : ops[at(i)]->inputs) {
            const std::vector<int>& writers = values[at(input.id)].writers;
            wanted.insert(wanted.end(), writers.begin(), writers.end());
        }
    }
}

// A value has a gradient if it depends on positions and the energy depends on it.
void Program::find_gradients() {
    backward_active.assign(ops.size(), 0);
    std::vector<char> seen(values.size(), 0);
    for (const int i : backward_order_) {
        OpSpec& op = *ops[at(i)];
        bool active = op.gives_energy();
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

void Program::find_dependent_ops(const Package& package, const std::vector<std::string>& tensors) {
    for (const std::string& name : tensors) {
        bool found = false;
        for (const auto& op : ops)
            for (const Tensor* const tensor : op->input_tensors)
                if (tensor->name == name) found = op->depends_on_inputs = true;
        if (!found)
            package.fail("tensor " + name +
                         " depends on inputs, expected a table, a weight, a bias or a shift of a "
                         "layer that may depend on them");
    }
    // an operation may also have multiplied in the weights of the next one
    for (const auto& op : ops)
        if (op->only_reader != nullptr && op->only_reader->depends_on_inputs)
            op->depends_on_inputs = true;
}

Program validate(const std::shared_ptr<const Package>& file) {
    const Package& package = *file;
    const ModelInfo info = read_model_info(package);
    Program program(package, info, Stages::shared);
    program.find_dependent_ops(package, InputTensors(file, info).names());
    for (const Program::Value& value : program.values)
        if (value.writers.empty() && !value.merged)
            package.fail("no layer writes the value \"" + value.name +
                         "\", expected one: remove the value");
    const auto& manifest = package.manifest();
    for (const auto& [key, irreps] : {std::pair{"dipoles", "1x1o"}, std::pair{"charges", "1x0e"}}) {
        if (!manifest.contains(key)) continue;
        const auto& name = manifest[key];
        const auto& last = program.descriptors;
        if (last.empty() || name != program.values[at(last.back())].name ||
            manifest["values"][program.values[at(last.back())].name] != irreps)
            package.fail(std::string(key) + " is " + name.dump() +
                         ", expected the name of the last descriptor, of irreps " + irreps);
    }
    if (!program.has_energy && !manifest.contains("dipoles"))
        package.fail("no layer gives an energy, expected energy or pair_energy");
    for (const auto& [name, tensor] : package.tensors())
        if (tensor.dtype != Dtype::u8)
            Fields(package.manifest(), package, "tensors").read<double>(tensor);
    return program;
}

void Program::no_implementation(const Package& package, std::size_t op,
                                const std::string& device) const {
    throw EngineError(ErrorKind::unsupported, package.path() + ": layer " +
                                                  std::to_string(ops[op]->index) + " has type " +
                                                  ops[op]->type +
                                                  ", which this version of mdcg does not "
                                                  "evaluate on " +
                                                  device + ": use device cpu");
}

}  // namespace mdcg
