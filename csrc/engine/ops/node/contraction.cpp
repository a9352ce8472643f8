#include "engine/ops/node/contraction.hpp"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/integers.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

namespace {

using nlohmann::json;

// Component c of a row, counted over all blocks, starts here.
std::vector<std::int32_t> component_offsets(const Rows& rows) {
    std::vector<std::int32_t> offsets;
    for (const Block& block : rows.blocks)
        for (int m = 0; m < block.dim(); ++m) offsets.push_back(block.offset + m * block.stride);
    return offsets;
}

}  // namespace

ContractionSpec::ContractionSpec(const LayerEntry& given) : OpSpec(given) {
    const Fields problem = fields.object_in_text("problem");
    expect_same_dtype(problem);
    if (!same_irreps(read_rows(problem, "irreps_in", align), x.rows) ||
        !same_irreps(read_rows(problem, "irreps_out", align), out.rows))
        fields.fail("problem", problem.text("irreps_in") + " -> " + problem.text("irreps_out"),
                    "the irreps of x and out");
    const int mul = x.rows.blocks[0].mul;
    for (const Rows* rows : {&x.rows, &out.rows})
        for (const Block& block : rows->blocks)
            if (block.mul != mul)
                fields.fail("has blocks of " + std::to_string(block.mul) + " and " +
                            std::to_string(mul) + " channels, expected one number");
    const json& list = problem.json("polynomials");
    if (!list.is_array()) problem.fail("polynomials", list.dump().substr(0, 60), "a list");
    stride = x.rows.blocks[0].stride;
    num_coefficients = static_cast<std::int64_t>(list.size());
    if (num_coefficients * stride > limits::MAX_ROW_ITEMS)
        problem.fail("polynomials",
                     "more than " + std::to_string(limits::MAX_ROW_ITEMS) + " coefficients",
                     "fewer");
    width = num_coefficients * stride;
    coefficients_ = &fields.tensor("coefficients", {-1, num_coefficients, mul});
    num_sets = coefficients_->shape[0];
    if (num_sets != 1 && num_sets != num_types)
        fields.fail("coefficients", "a tensor of shape " + coefficients_->shape_text(),
                    "1 or " + std::to_string(num_types) + " types");
    read_polynomials(problem);
}

template <typename T>
AlignedArray<T> ContractionSpec::coefficients() const {
    const std::vector<T> values = fields.read<T>(*coefficients_);
    const auto mul = size(x.rows.blocks[0].mul);
    const auto step = size(stride);
    const auto rows = size(num_sets * num_coefficients);
    AlignedArray<T> padded;
    padded.resize(rows * step);
    for (std::size_t r = 0; r < rows; ++r)
        std::copy_n(values.data() + r * mul, mul, padded.data() + r * step);
    return padded;
}

template AlignedArray<float> ContractionSpec::coefficients() const;
template AlignedArray<double> ContractionSpec::coefficients() const;

void ContractionSpec::read_polynomials(const Fields& problem) {
    const json& list = problem.json("polynomials");
    const std::vector<std::int32_t> in = component_offsets(x.rows);
    struct Entry {
        std::int32_t coefficient, out;
        double value;
    };
    std::map<std::vector<std::int32_t>, std::vector<Entry>> found;
    const auto check = [&problem](bool fits, const json& part) {
        if (!fits)
            problem.fail("polynomials", "a list with " + part.dump().substr(0, 60),
                         "[block, [[[factor, ascending indices of components], ...], ...]], a "
                         "product once for each component, and factors that are not 0");
    };
    json written = json::array();
    for (const json& polynomial : list) {
        check(polynomial.is_array() && polynomial.size() == 2 &&
                  polynomial[0].is_number_unsigned() && polynomial[1].is_array() &&
                  polynomial[0].get<std::uint64_t>() < out.rows.blocks.size(),
              polynomial);
        const Block& block = out.rows.blocks[polynomial[0].get<std::size_t>()];
        check(polynomial[1].size() == size(block.dim()), polynomial);
        json components = json::array();
        for (const json& terms : polynomial[1]) {
            check(terms.is_array(), terms);
            const Entry entry{
                narrow(static_cast<std::int64_t>(written.size()) * stride),
                block.offset + narrow(static_cast<std::int64_t>(components.size())) * block.stride,
                0};
            json products = json::array();
            for (const json& term : terms) {
                check(term.is_array() && term.size() > 1 &&
                          term.size() <= 1 + limits::MAX_CONTRACTION_DEGREE && term[0].is_string(),
                      term);
                std::vector<std::int32_t> factors;
                for (std::size_t i = 1; i < term.size(); ++i) {
                    check(term[i].is_number_unsigned() &&
                              term[i].get<std::uint64_t>() < in.size() &&
                              (i == 1 || term[i - 1] <= term[i]),
                          term);
                    factors.push_back(in[term[i].get<std::size_t>()]);
                }
                std::vector<Entry>& entries = found[factors];
                const double value = parse_hex(term[0].get<std::string>());
                const bool again = !entries.empty() && entries.back().out == entry.out &&
                                   entries.back().coefficient == entry.coefficient;
                check(value != 0 && !again, term);
                entries.push_back({entry.coefficient, entry.out, value});
                products.push_back(term);
                products.back()[0] = hex_text(value);
            }
            components.push_back(std::move(products));
        }
        written.push_back({polynomial[0], std::move(components)});
    }
    fields.expect_text_of("problem", {{"format", 1},
                                      {"kind", "symmetric_contraction"},
                                      {"irreps_in", irreps_text(x.rows)},
                                      {"irreps_out", irreps_text(out.rows)},
                                      {"dtype", problem.text("dtype")},
                                      {"polynomials", std::move(written)}});
    for (const auto& [factors, entries] : found) {
        monomials.factor.insert(monomials.factor.end(), factors.begin(), factors.end());
        monomials.factor_ptr.push_back(narrow(monomials.factor.size()));
        for (const Entry& entry : entries) {
            monomials.coefficient.push_back(entry.coefficient);
            monomials.out_item.push_back(entry.out);
            monomials.value.push_back(entry.value);
        }
        monomials.entry_ptr.push_back(narrow(monomials.value.size()));
    }
}

}  // namespace mdcg
