// The functions that an emulated kernel calls in the driver, to interact with other threads.
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

// Bytes of shared memory that a block can have, and of the guard behind them.
constexpr std::size_t kSharedBytes = 227 * 1024, kSharedGuard = 1024;

// Operations of a warp. Lanes that meet in different operations are an error.
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
    // An asynchronous copy takes place when it is waited for. It reads `bytes` of `size` bytes; the
    // others are zeros.
    void (*copy)(void* to, const void* from, int size, int bytes);
    void (*commit)();
    void (*wait_copies)(int groups);
};

// Most words that a lane can give in one exchange.
constexpr int kWords = 12;

// The description of a kernel in its library, under the symbol NAME__emulated.
struct Kernel {
    void (*run)(void** parameters);
    const std::size_t* sizes;  // bytes of each parameter
    int num_parameters;
    int max_threads;  // threads of a block at most
    int wavefront;    // lanes that arrive at a barrier together: 32, or 64 for AMD's GPUs
};

}  // namespace emulation
