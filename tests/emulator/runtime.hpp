// What an emulated kernel asks of the library that runs it: the other threads of its block.
// Included by kernels (through emulation.hpp) and by the emulated driver.
#pragma once

#include <cstddef>

namespace emulation {

struct Dim {
    unsigned x;  // launches have one dimension
};

struct Thread {
    Dim index;  // in its block
};

// Bytes of shared memory a block can have, and of the guard behind them.
constexpr std::size_t kSharedBytes = 227 * 1024, kSharedGuard = 1024;

// Operations of a warp, so that lanes which meet in different ones are found.
enum Kind { kSync, kShuffle, kBallot, kMatrix };

struct Runtime {
    Thread* current;
    Dim block, block_dim, grid_dim;

    // Waits for all threads that have not ended.
    void (*barrier)();
    // Meets the lanes of a mask. Returns what each of the 32 gave, in `words` words of each, and
    // the lanes that gave something; valid until the caller meets others of its warp again.
    const unsigned long long* (*exchange)(unsigned mask, Kind kind, const unsigned long long* value,
                                          int words, unsigned* lanes);
    // Ends the launch with an error.
    void (*fail)(const char* what);
    // Copies that take place when they are waited for; `bytes` of `size` are read, the rest zeros.
    void (*copy)(void* to, const void* from, int size, int bytes);
    void (*commit)();
    void (*wait_copies)(int groups);
};

// Words that a lane can give at a time.
constexpr int kWords = 12;

// How a library of kernels describes each of them: symbol NAME__emulated.
struct Kernel {
    void (*run)(void** parameters);
    const std::size_t* sizes;  // of the parameters
    int num_parameters;
    int max_threads;  // of a block
};

}  // namespace emulation
