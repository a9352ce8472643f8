#include "kernels/common.cuh"
#include "kernels/copies.hpp"

extern "C" __global__ void copy_items(CopyArguments a) {
    const Long i = thread_number();
    if (i < a.count) a.to[i] = a.from[i];
    if (i < a.num_cleared) a.cleared[i] = 0;
    if (i < a.num_marks) a.marks[i] = 0;
}
