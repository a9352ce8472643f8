// What a symmetric contraction of any back end reads from the manifest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/layers/node_layer.hpp"
#include "engine/limits.hpp"

namespace mdcg {

template <typename T>
struct ContractionParts {
    std::int64_t stride = 0;            // items of a block's component
    std::int64_t num_coefficients = 0;  // polynomials
    std::int64_t width = 0;             // coefficients of one type, padded
    std::int64_t num_types = 0;         // sets of coefficients: 1 or as many as types
    AlignedArray<T> coefficients;       // [num_types][num_coefficients][stride]

    static ContractionParts read(const LayerSpec& spec, const Operand& x, const Operand& out) {
        const Fields& fields = spec.fields;
        const Fields problem = fields.object("problem");
        if (problem.text("kind") != "symmetric_contraction" ||
            problem.integer("format", 1, 1 << 30) != 1)
            fields.fail("problem", problem.text("kind"), "symmetric_contraction of format 1");
        if (!same_irreps(Rows::parse(problem.text("irreps_in"), row_align<T>()), x.rows) ||
            !same_irreps(Rows::parse(problem.text("irreps_out"), row_align<T>()), out.rows))
            fields.fail("problem", problem.text("irreps_in") + " -> " + problem.text("irreps_out"),
                        "the irreps of x and out");
        const int mul = x.rows.blocks[0].mul;
        for (const Rows* rows : {&x.rows, &out.rows})
            for (const Block& block : rows->blocks)
                if (block.mul != mul)
                    fields.fail("has blocks of " + std::to_string(block.mul) + " and " +
                                std::to_string(mul) + " channels, expected one number");
        const nlohmann::json& list = problem.json("polynomials");
        if (!list.is_array()) problem.fail("polynomials", "damaged", "a list");
        ContractionParts found;
        found.stride = x.rows.blocks[0].stride;
        found.num_coefficients = static_cast<std::int64_t>(list.size());
        if (found.num_coefficients * found.stride > limits::MAX_ROW_ITEMS)
            problem.fail("polynomials",
                         "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " coefficients",
                         "fewer");
        found.width = found.num_coefficients * found.stride;
        const Tensor& tensor = fields.tensor("coefficients", {-1, found.num_coefficients, mul});
        found.num_types = tensor.shape[0];
        if (found.num_types != 1 && found.num_types != spec.info.num_types())
            fields.fail("coefficients", "a tensor of shape " + tensor.shape_text(),
                        "1 or " + std::to_string(spec.info.num_types()) + " types");
        const std::vector<T> values =
            fields.values<T>("coefficients", {-1, found.num_coefficients, mul});
        const auto rows = static_cast<std::size_t>(found.num_types * found.num_coefficients);
        found.coefficients.resize(rows * static_cast<std::size_t>(found.stride));
        for (std::size_t r = 0; r < rows; ++r)
            std::copy_n(values.data() + r * static_cast<std::size_t>(mul), mul,
                        found.coefficients.data() + r * static_cast<std::size_t>(found.stride));
        return found;
    }
};

}  // namespace mdcg
