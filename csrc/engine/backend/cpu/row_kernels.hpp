// Functions of rows (kernels/row_functions.hpp) on a CPU.
#pragma once

#include "kernels/row_functions.hpp"

namespace mdcg {

#define MDCG_ROW_NAME(NAME, ARGUMENTS, MEMBER, ROW) NAME,
enum class RowFunction { MDCG_ROW_FUNCTIONS(MDCG_ROW_NAME) COUNT };
#undef MDCG_ROW_NAME

struct RowKernels {
    // `arguments` are those of the function; all their rows are computed.
    void (*row_functions[static_cast<int>(RowFunction::COUNT)])(const void* arguments);
};

// Compiled for x86-64-v<level>.
template <int level, typename T>
RowKernels row_kernels();

}  // namespace mdcg
