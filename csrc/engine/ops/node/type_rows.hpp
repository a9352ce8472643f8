// out[n] = table[type of n]
#pragma once

#include "engine/op.hpp"

namespace mdcg {

struct TypeRowsSpec : OpSpec {
    const Operand& out = output("out");
    const Tensor& table = fields.tensor("table", {num_types, out.rows.features});

    using OpSpec::OpSpec;

    // Padded: [types][width of out]
    template <typename T>
    std::vector<T> rows() const {
        return out.rows.padded(fields.read<T>(table), num_types);
    }
};
inline const RegisterSpec<TypeRowsSpec> type_rows_spec{"type_rows"};

}  // namespace mdcg
