#include "core/launch.hpp"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/threads.hpp"

namespace mdcg {

namespace {

struct FreeMemory {
    void operator()(char* memory) const { std::free(memory); }
};

// Kept by each thread between launches, so that a step allocates nothing.
char* thread_scratch(std::size_t bytes) {
    thread_local std::unique_ptr<char, FreeMemory> memory;
    thread_local std::size_t capacity = 0;
    if (capacity < bytes) {
        const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
        memory.reset(static_cast<char*>(std::aligned_alloc(4096, rounded)));
        capacity = memory ? rounded : 0;
    }
    return memory.get();
}

}  // namespace

void launch_rounds(HostKernel kernel, const std::int64_t* arg, const std::int64_t* round_ptr,
                   std::int64_t num_rounds, int num_threads, std::size_t scratch_bytes) {
    std::int64_t widest = 0;
    for (std::int64_t r = 0; r < num_rounds; ++r)
        widest = std::max(widest, round_ptr[r + 1] - round_ptr[r]);
    const int threads = usable_threads(static_cast<int>(
        std::min<std::int64_t>(std::max(num_threads, 1), std::max<std::int64_t>(widest, 1))));
    const std::size_t bytes = std::max<std::size_t>(scratch_bytes, 64);
    bool out_of_memory = false;
    (void)threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        char* scratch = thread_scratch(bytes);
        if (scratch == nullptr) {
#pragma omp atomic write
            out_of_memory = true;
        }
        for (std::int64_t r = 0; r < num_rounds; ++r) {
#pragma omp for schedule(dynamic, 1)
            for (std::int64_t task = round_ptr[r]; task < round_ptr[r + 1]; ++task)
                if (scratch != nullptr) kernel(arg, task, scratch);
        }
    }
    if (out_of_memory) throw std::bad_alloc();
}

}  // namespace mdcg
