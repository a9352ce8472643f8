// Symmetric contraction: polynomials of a node's features, channel by channel, with coefficients of
// its type.
#pragma once

#include "engine/backend/cpu/simd.hpp"
#include "engine/op.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

struct ContractionSpec : OpSpec {
    // Monomial m is the product of the components that start at items factor[factor_ptr[m]] .. of a
    // row of x. Entry e of its entries entry_ptr[m] .. adds value[e] times the coefficient that
    // starts at item coefficient[e] times the monomial to the component that starts at out_item[e].
    struct Monomials {
        std::vector<std::int32_t> factor_ptr{0}, factor, entry_ptr{0}, coefficient, out_item;
        std::vector<double> value;
    };

    const Operand& x = input("x", saved_for_backward);
    const Operand& out = output("out");
    std::int64_t stride = 0;            // items of a block's component
    std::int64_t num_coefficients = 0;  // polynomials
    std::int64_t width = 0;             // coefficients of one type, padded
    std::int64_t num_sets = 0;          // sets of coefficients: 1 or as many as types
    Monomials monomials;

    explicit ContractionSpec(const LayerEntry& given);

    KernelSize kernel_size() const override {
        const auto terms = static_cast<std::int64_t>(monomials.value.size());
        return {terms, limits::BASE_TEXT + limits::PRODUCT_TEXT * terms, fields.text("problem")};
    }
    // [num_sets][num_coefficients][stride]
    template <typename T>
    AlignedArray<T> coefficients() const;

private:
    void read_polynomials(const Fields& problem);
    const Tensor* coefficients_ = nullptr;  // [num_sets][num_coefficients][channels]
};
inline const RegisterSpec<ContractionSpec> contraction_spec{"contraction"};

}  // namespace mdcg
