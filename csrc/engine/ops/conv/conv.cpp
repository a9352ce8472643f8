#include "engine/ops/conv/conv.hpp"

#include <algorithm>
#include <string>

#include "core/integers.hpp"
#include "engine/edges/harmonics.hpp"

namespace mdcg {

ConvSpec::ConvSpec(const LayerEntry& given) : OpSpec(given) {
    forward_space = IterationSpace::receivers;
    const Fields from = fields.object("radial");
    const int outputs = RadialSpec::outputs(from);
    description = ConvDescription::read(fields, outputs, align);
    expect_same_dtype(fields.object_in_text("problem"));
    radial = RadialSpec::read(from, given.info, outputs, powers_of_length());
    radial.check_finite(from);
    units = radial.units();
    hidden_stride = (units + align - 1) / align * align;
    normalization = fields.text("normalization", "component");
    harmonic_factors<double>(description.l_max, normalization);  // throws if there are none

    const auto check = [this](const Operand& operand, const Rows& rows, const char* key,
                              const char* irreps) {
        if (!same_irreps(operand.rows, rows))
            fields.fail(key, "a value of other irreps", std::string("the problem's ") + irreps);
    };
    check(out, description.out, "out", "irreps_out");
    if (x.present()) {
        check(x, description.x, "x", "irreps_in1");
    } else {
        x_table_ = &fields.tensor("x_table", {num_types, description.x.features});
        input_tensors = {x_table_};
    }
    const std::int64_t width = radial.layers[0].out;
    for (Operand& operand : inputs) {
        operand.gathered = &operand != &receiver;
        const std::vector<Block>& blocks = operand.rows.blocks;
        if (&operand != &x && (blocks.size() != 1 || blocks[0].l != 0 || blocks[0].mul != width))
            from.fail(&operand == &sender ? "sender" : "receiver", "a value of other irreps",
                      std::to_string(width) + "x0e, as many as the first layer has outputs");
    }
}

// Of each weight the power of the length that solid harmonics have and those of unit vectors lack;
// empty: harmonics are those of unit vectors.
std::vector<int> ConvSpec::powers_of_length() const {
    const std::string kind = fields.text("harmonics", "unit");
    if (kind != "unit" && kind != "solid")
        fields.fail("harmonics", "'" + kind + "'", "unit or solid");
    std::vector<int> powers;
    if (kind == "unit") return powers;
    for (const GenericPath& path : description.paths)
        powers.insert(powers.end(), size(path.mul), (path.harmonic_dim - 1) / 2);
    return powers;
}

// The operand that a field names, or `absent`: a tensor is a table by type, not an operand.
const Operand& ConvSpec::end(const char* key) {
    const Fields from = fields.object("radial");
    if (!from.has(key) || fields.package().find(from.text(key)) != nullptr) return absent;
    return input(from, key, saved_for_backward);
}

template <typename T>
AlignedArray<T> ConvSpec::x_table() const {
    const std::vector<T> rows = description.x.padded(fields.read<T>(*x_table_), num_types);
    AlignedArray<T> table;  // generated kernels read whole vectors
    table.resize(rows.size());
    std::copy(rows.begin(), rows.end(), table.data());
    return table;
}

template <typename T>
AlignedArray<T> ConvSpec::last_layer() const {
    const std::vector<double> last = radial.last();
    const std::vector<std::int32_t>& columns = description.weights.columns;
    const auto stride = size(hidden_stride);
    AlignedArray<T> transposed;
    transposed.resize(size(description.weights.width) * stride);
    for (std::size_t k = 0; k < size(units); ++k)
        for (std::size_t o = 0; o < columns.size(); ++o)
            transposed[size(columns[o]) * stride + k] =
                static_cast<T>(last[k * columns.size() + o]);
    return transposed;
}

template AlignedArray<float> ConvSpec::x_table() const;
template AlignedArray<double> ConvSpec::x_table() const;
template AlignedArray<float> ConvSpec::last_layer() const;
template AlignedArray<double> ConvSpec::last_layer() const;

}  // namespace mdcg
