// Runs the blocks of a launch one by one, and the threads of a block as coroutines.
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
    std::size_t dynamic_bytes;  // bytes of it that the launch uses
    char* static_shared;        // of the kernel's library
    std::size_t static_bytes;
};

// Returns the only table of functions that kernels call.
Runtime& runtime();

// Runs a launch. Returns 0, or a CUresult after a message on stderr. One launch at a time.
int run(const Launch& launch);

}  // namespace emulation
