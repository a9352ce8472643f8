// Arguments of kernels/copies.cuh.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Copies numbers, from or to the device or page-locked memory of the host, and sets other numbers
// and marks to zero.
struct CopyArguments {
    const double* from;
    double* to;
    Long count;
    double* cleared;
    Long num_cleared;
    int* marks;
    Long num_marks;
};
static_assert(sizeof(CopyArguments) == 56);

}  // namespace mdcg
