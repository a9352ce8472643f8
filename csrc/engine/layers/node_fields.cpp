#include "engine/layers/node_fields.hpp"

#include <algorithm>
#include <numeric>

namespace mdcg {

template <typename T>
LinearFields<T>::LinearFields(const LayerSpec& spec, const Rows& x, const Rows& out) {
    const int types = spec.info.num_types();
    for (const Fields& entry : spec.fields.objects("paths")) {
        Path path{};
        path.in = block_index(entry, "in", x);
        path.out = block_index(entry, "out", out);
        const Block &from = x.blocks[path.in], &to = out.blocks[path.out];
        if (from.l != to.l)
            entry.fail("goes from " + block_text(from) + " to " + block_text(to) +
                       ", expected irreps of one degree");
        path.typed = entry.tensor("weight").shape.size() == 3;
        path.weight = path.typed ? entry.values<T>("weight", {types, from.mul, to.mul})
                                 : entry.values<T>("weight", {from.mul, to.mul});
        paths.push_back(std::move(path));
    }
    for (const Fields& entry : spec.fields.objects("bias")) {
        Bias bias{};
        bias.out = block_index(entry, "out", out);
        const Block& block = out.blocks[bias.out];
        if (block.l != 0)
            entry.fail("adds to " + block_text(block) + ", expected a block of scalars");
        bias.typed = entry.tensor("value").shape.size() == 2;
        bias.value = bias.typed ? entry.values<T>("value", {types, block.mul})
                                : entry.values<T>("value", {block.mul});
        biases.push_back(std::move(bias));
    }
    std::stable_sort(paths.begin(), paths.end(),
                     [](const Path& a, const Path& b) { return a.out < b.out; });
    by_in.resize(paths.size());
    std::iota(by_in.begin(), by_in.end(), std::size_t(0));
    std::stable_sort(by_in.begin(), by_in.end(),
                     [this](std::size_t a, std::size_t b) { return paths[a].in < paths[b].in; });
}

GateFields::GateFields(const LayerSpec& spec, const Rows& x, const Rows& out) {
    std::vector<int> writers(out.blocks.size(), 0);
    const auto function = [](const Fields& entry) {
        return Function{parse_activation(entry.text("activation", "none")),
                        entry.number("factor", 1.0)};
    };
    const auto check = [&](const Fields& entry, std::size_t from, std::size_t to) {
        const Block &a = x.blocks[from], &b = out.blocks[to];
        if (a.mul != b.mul || a.l != b.l)
            entry.fail("goes from " + block_text(a) + " to " + block_text(b) +
                       ", expected one shape");
        ++writers[to];
    };
    for (const Fields& entry : spec.fields.objects("scalars")) {
        scalars.push_back(
            {block_index(entry, "in", x), block_index(entry, "out", out), function(entry)});
        check(entry, scalars.back().in, scalars.back().out);
        if (x.blocks[scalars.back().in].l != 0)
            entry.fail("is a block of vectors, expected scalars");
    }
    for (const Fields& entry : spec.fields.objects("gated")) {
        Gated g{block_index(entry, "gate", x), 0, block_index(entry, "in", x),
                block_index(entry, "out", out), function(entry)};
        check(entry, g.in, g.out);
        const Block &gate = x.blocks[g.gate], &in = x.blocks[g.in];
        if (gate.l != 0 || gate.mul < in.mul)
            entry.fail("has the gate " + block_text(gate) + " for " + block_text(in) +
                       ", expected scalars, at least as many");
        g.gate_offset = entry.has("gate_offset")
                            ? static_cast<int>(entry.integer("gate_offset", 0, gate.mul - in.mul))
                            : 0;
        gated.push_back(g);
    }
    for (std::size_t b = 0; b < writers.size(); ++b)
        if (writers[b] != 1)
            spec.fields.fail("writes block " + std::to_string(b) + " of out " +
                             std::to_string(writers[b]) + " times, expected once");
}

template <typename N>
std::vector<N> one_or_by_type(const LayerSpec& spec, const char* key) {
    std::vector<N> values = spec.fields.values<N>(key, {-1});
    const int types = spec.info.num_types();
    if (values.size() != 1 && values.size() != static_cast<std::size_t>(types))
        spec.fields.fail(key, std::to_string(values.size()) + " numbers",
                         "1 or " + std::to_string(types));
    return values;
}

NormalizeFields::NormalizeFields(const LayerSpec& spec, const Operand& x, const Operand& out)
    : density(spec.operand("density")),
      alpha(spec.fields.number("alpha")),
      beta(spec.fields.number("beta")) {
    expect_same_irreps(spec.fields, x, out);
    if (density.rows.features != 1)
        spec.fields.fail("density has " + std::to_string(density.rows.features) +
                         " features, expected 1x0e");
}

Operand product_factor(const LayerSpec& spec, const Operand& x, const Operand& out) {
    Operand y = spec.operand("y");
    expect_same_irreps(spec.fields, x, out);
    expect_same_irreps(spec.fields, y, out);
    for (const Block& block : y.rows.blocks)
        if (block.l != 0)
            spec.fields.fail("multiplies " + block_text(block) + ", expected scalars");
    return y;
}

std::vector<Operand> sum_terms(const LayerSpec& spec, const Operand& out) {
    std::vector<Operand> terms = spec.operands(spec.fields, "x");
    if (terms.empty()) spec.fields.fail("x", "empty", "one value or more");
    for (const Operand& x : terms) expect_same_irreps(spec.fields, x, out);
    return terms;
}

EnergyFields::EnergyFields(const LayerSpec& spec, const Operand& x) {
    const Block& block = x.rows.blocks[0];
    if (block.l != 0) spec.fields.fail("x starts with " + block_text(block) + ", expected scalars");
    channel = spec.fields.integer("channel", 0, block.mul - 1);
    scale = one_or_by_type<double>(spec, "scale");
    shift = one_or_by_type<double>(spec, "shift");
    const auto types = static_cast<std::size_t>(spec.info.num_types());
    for (std::vector<double>* values : {&scale, &shift})
        if (values->size() == 1) values->resize(types, (*values)[0]);
}

template <typename T>
std::vector<T> type_table(const LayerSpec& spec, const Operand& out) {
    const int types = spec.info.num_types();
    const std::vector<T> table = spec.fields.values<T>("table", {types, out.rows.features});
    std::vector<T> padded(static_cast<std::size_t>(types) *
                          static_cast<std::size_t>(out.rows.width));
    for (int t = 0; t < types; ++t)
        out.rows.pad(table.data() + static_cast<std::ptrdiff_t>(t) * out.rows.features,
                     padded.data() + static_cast<std::ptrdiff_t>(t) * out.rows.width);
    return padded;
}

template struct LinearFields<float>;
template struct LinearFields<double>;
template std::vector<float> one_or_by_type<float>(const LayerSpec&, const char*);
template std::vector<double> one_or_by_type<double>(const LayerSpec&, const char*);
template std::vector<float> type_table<float>(const LayerSpec&, const Operand&);
template std::vector<double> type_table<double>(const LayerSpec&, const Operand&);

}  // namespace mdcg
