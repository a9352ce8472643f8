// Runs the blocks of a launch one after the other, the threads of a block as coroutines.
#pragma once

#include <cstdint>
#include <string>

#include "runtime.hpp"

namespace emulation {

struct Launch {
    std::string name;
    const Kernel* kernel;
    void** parameters;
    Dim grid, block;
    char* dynamic_shared;       // of the kernel's library
    std::size_t dynamic_bytes;  // of it in use
    char* static_shared;        // of the kernel's library
    std::size_t static_bytes;
};

// The table that kernels call; there is one.
Runtime& runtime();

// Returns 0 or a CUresult; what went wrong is said on stderr. One launch at a time.
int run(const Launch& launch);

}  // namespace emulation
