// Parallel loops. A single thread runs them without OpenMP, which would allocate a team each time.
#pragma once

#include <omp.h>

#include <cstdint>

namespace mdcg {

// Calls body(i, thread) for i = 0 .. count - 1. Each thread has an equal part of consecutive i.
template <typename Body>
void share(int threads, std::int64_t count, const Body& body) {
    if (threads <= 1) {
        for (std::int64_t i = 0; i < count; ++i) body(i, 0);
        return;
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (std::int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

// The same, but a thread that is free takes the next `chunk` values of i.
template <typename Body>
void share_in_turns(int threads, std::int64_t count, std::int64_t chunk, const Body& body) {
    if (threads <= 1) {
        for (std::int64_t i = 0; i < count; ++i) body(i, 0);
        return;
    }
#pragma omp parallel for schedule(dynamic, chunk) num_threads(threads)
    for (std::int64_t i = 0; i < count; ++i) body(i, omp_get_thread_num());
}

}  // namespace mdcg
