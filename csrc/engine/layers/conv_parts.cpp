#include "engine/layers/conv_parts.hpp"

#include <string>

#include "engine/layers/node_layer.hpp"

namespace mdcg {

template <typename T>
ConvParts<T> ConvParts<T>::read(const LayerSpec& spec) {
    const Fields& fields = spec.fields;
    ConvParts found;
    const Fields radial = fields.object("radial");
    const int radial_outputs = RadialSpec::outputs(radial);
    found.description = ConvDescription<T>::read(fields, radial_outputs);
    const ConvDescription<T>& description = found.description;
    found.radial = RadialSpec::read(radial, spec.info, radial_outputs);
    found.units = found.radial.units();
    constexpr int align = row_align<T>();
    found.hidden_stride = (found.units + align - 1) / align * align;
    found.normalization = fields.text("normalization", "component");
    found.flip = spec.info.flip_edges;

    const auto same = [&](const Operand& operand, const Rows& rows, const char* key,
                          const char* irreps) {
        if (!same_irreps(operand.rows, rows))
            fields.fail(key, "a value of other irreps", std::string("the problem's ") + irreps);
    };
    found.out = spec.operand("out");
    same(found.out, description.out, "out", "irreps_out");
    if (fields.has("x")) {
        found.x = spec.operand("x");
        same(found.x, description.x, "x", "irreps_in1");
    } else {
        const std::int64_t types = spec.info.num_types();
        const Rows& rows = description.x;
        const std::vector<T> table = fields.values<T>("x_table", {types, rows.features});
        found.x_table.resize(static_cast<std::size_t>(types * rows.width));
        for (std::int64_t t = 0; t < types; ++t)
            rows.pad(table.data() + t * rows.features, found.x_table.data() + t * rows.width);
    }
    for (const bool sender : {true, false}) {
        const char* key = sender ? "sender" : "receiver";
        if ((sender ? found.radial.sender_value : found.radial.receiver_value).empty()) continue;
        Operand& operand = sender ? found.sender : found.receiver;
        operand = spec.operand(radial, key);
        if (operand.rows.blocks.size() != 1 || operand.rows.blocks[0].l != 0 ||
            operand.rows.blocks[0].mul != found.radial.layers[0].out)
            radial.fail(key, "a value of other irreps",
                        std::to_string(found.radial.layers[0].out) +
                            "x0e, as many as the first "
                            "layer has outputs");
    }
    const std::vector<double> last = found.radial.last();
    const std::size_t outputs = description.weights.columns.size();
    const auto stride = static_cast<std::size_t>(found.hidden_stride);
    found.w2_t.resize(static_cast<std::size_t>(description.weights.width) * stride);
    for (std::size_t k = 0; k < static_cast<std::size_t>(found.units); ++k)
        for (std::size_t o = 0; o < outputs; ++o)
            found.w2_t[static_cast<std::size_t>(description.weights.columns[o]) * stride + k] =
                static_cast<T>(last[k * outputs + o]);
    return found;
}

template struct ConvParts<float>;
template struct ConvParts<double>;

}  // namespace mdcg
