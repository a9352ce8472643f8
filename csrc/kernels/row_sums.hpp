// Arguments of kernels/row_sums.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

constexpr int SUM_ROWS = 1024, SUM_THREADS = 256;  // rows and threads per block

// Sums of columns, always in the same order.
struct RowSumArguments {
    const double* rows;  // [count][width]
    double* out;         // [blocks][width]
    Long count, width;
};
static_assert(sizeof(RowSumArguments) == 32);

}  // namespace mdcg
