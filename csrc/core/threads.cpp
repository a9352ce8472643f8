#include "core/threads.hpp"

#include <omp.h>
#include <sys/types.h>
#include <unistd.h>

namespace mdcg {

namespace {

// The process whose regions had several threads first; 0: none yet. Children inherit it.
std::atomic<pid_t> with_threads{0};

}  // namespace

bool forked_after_threads() {
    const pid_t process = with_threads.load(std::memory_order_relaxed);
    return process != 0 && process != getpid();
}

int usable_threads(int wanted) {
    const int threads = wanted > 0 ? wanted : omp_get_max_threads();
    if (threads <= 1 || forked_after_threads()) return 1;
    with_threads.store(getpid(), std::memory_order_relaxed);
    return threads;
}

}  // namespace mdcg
