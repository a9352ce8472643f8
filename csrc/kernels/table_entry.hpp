// Tables of a pair of types, as kernels find them; kernels that mdcg/codegen writes read it too.
#pragma once

namespace mdcg {

// A length r stands at place (sqrt(r) - first) * inverse_step of its table, in intervals; the table
// begins at row `row` (-1: the pair has no table).
struct TableEntry {
    double first, inverse_step;
    int row, intervals;
};
static_assert(sizeof(TableEntry) == 24);

}  // namespace mdcg
