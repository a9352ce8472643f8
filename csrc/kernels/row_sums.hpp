// Arguments of kernels/row_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Sums of columns, 1024 rows a block, always in the same order.
struct RowSumArguments {
    const double* rows;  // [count][width]
    double* out;         // [blocks][width]
    Long count, width;
};
static_assert(sizeof(RowSumArguments) == 32);

}  // namespace mdcg
