#include "engine/op.hpp"

#include <algorithm>
#include <stdexcept>

namespace mdcg {

Operand LayerEntry::operand(const Fields& from, const char* key, const std::string& name) const {
    const auto found = values.find(name);
    if (found == values.end()) from.fail(key, "\"" + name + "\"", "a name that \"values\" lists");
    return found->second;
}

OpSpec::OpSpec(const LayerEntry& given)
    : fields(given.fields),
      type(fields.text("type")),
      name(fields.text("name", type)),
      index(given.index),
      num_types(given.info.num_types()),
      align(given.info.double_precision ? row_align<double>() : row_align<float>()),
      flip_edges(given.info.flip_edges),
      entry(given) {}

Operand& OpSpec::input(const Fields& from, const char* key, Use use) {
    inputs.push_back(entry.operand(from, key));
    inputs.back().saved_for_backward = use == saved_for_backward;
    return inputs.back();
}

Operand& OpSpec::output(const char* key) {
    outputs.push_back(entry.operand(fields, key));
    return outputs.back();
}

void OpSpec::expect_same_irreps(const Operand& x, const Operand& out) const {
    if (!same_irreps(x.rows, out.rows))
        fields.fail("x and out have different irreps, expected the same");
}

void OpSpec::expect_same_dtype(const Fields& problem) const {
    const std::string wanted = entry.info.double_precision ? "float64" : "float32";
    if (problem.text("dtype") != wanted)
        problem.fail("dtype", problem.text("dtype"), wanted + ", the dtype of the package");
}

std::size_t OpSpec::block_index(const Fields& from, const char* key, const Operand& operand) {
    return static_cast<std::size_t>(
        from.integer(key, 0, static_cast<std::int64_t>(operand.rows.blocks.size()) - 1));
}

std::size_t OpSpec::input_number(const std::string& name) const {
    const std::vector<Input>& inputs = entry.info.inputs;
    const auto found = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const Input& input) { return input.name == name; });
    if (found == inputs.end())
        fields.fail("reads the input " + name + ", expected one of that name among the inputs");
    return static_cast<std::size_t>(found - inputs.begin());
}

const Tensor& OpSpec::one_or_by_type(const char* key, Content content) const {
    const Tensor& found = fields.tensor(key, {-1}, content);
    if (found.count != 1 && found.count != num_types)
        fields.fail(key, std::to_string(found.count) + " numbers",
                    "1 or " + std::to_string(num_types));
    return found;
}

Rows read_rows(const Fields& fields, const char* key, int align) {
    try {
        return Rows::parse(fields.text(key), align);
    } catch (const std::invalid_argument& error) {
        fields.fail(key, error.what(), "irreps");
    }
}

bool same_irreps(const Rows& a, const Rows& b) {
    if (a.blocks.size() != b.blocks.size()) return false;
    for (std::size_t i = 0; i < a.blocks.size(); ++i)
        if (a.blocks[i].mul != b.blocks[i].mul || a.blocks[i].l != b.blocks[i].l ||
            a.blocks[i].parity != b.blocks[i].parity)
            return false;
    return true;
}

std::string block_text(const Block& block) {
    return std::to_string(block.mul) + "x" + std::to_string(block.l) +
           (block.parity > 0 ? "e" : "o");
}

std::string irreps_text(const Rows& rows) {
    std::string text;
    for (const Block& block : rows.blocks) text += (text.empty() ? "" : "+") + block_text(block);
    return text;
}

// A local static exists before the first registration, in whatever order global objects are made.
std::map<std::string, OpType>& op_types() {
    static std::map<std::string, OpType> types;
    return types;
}

}  // namespace mdcg
