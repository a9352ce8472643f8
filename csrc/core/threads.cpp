#include "core/threads.hpp"

#include <omp.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace mdcg {

namespace {

// The process in which a region had several threads for the first time; 0: none. A forked child
// inherits the number of its parent.
std::atomic<pid_t> with_threads{0};

// Waits until the system no longer counts a thread that was joined.
void wait_for_end(pid_t thread) {
    for (int i = 0; i < 100000 && syscall(SYS_tgkill, getpid(), thread, 0) == 0; ++i)
        std::this_thread::yield();
}

// Starts up to `wanted` threads at the same time, ends them, and returns how many there were.
int start_threads(int wanted) {
    std::mutex mutex;
    std::mutex running;  // held while all threads must go on
    std::vector<pid_t> ids;
    std::vector<std::thread> threads;
    running.lock();
    const auto end = [&] {
        running.unlock();
        for (std::thread& thread : threads) thread.join();
        for (const pid_t id : ids) wait_for_end(id);
    };
    try {
        ids.reserve(static_cast<std::size_t>(wanted));
        threads.reserve(static_cast<std::size_t>(wanted));
        for (int i = 0; i < wanted; ++i)
            threads.emplace_back([&] {
                {
                    const std::lock_guard<std::mutex> guard(mutex);
                    ids.push_back(static_cast<pid_t>(syscall(SYS_gettid)));
                }
                const std::lock_guard<std::mutex> wait(running);
            });
    } catch (const std::system_error&) {  // no thread
    } catch (const std::bad_alloc&) {     // no memory for one
    }
    end();
    return static_cast<int>(threads.size());
}

}  // namespace

ThreadError::ThreadError(int wanted, int started)
    : sentence_(std::to_string(wanted) + " threads are wanted and the system starts " +
                std::to_string(started) +
                ": raise the limit of processes (ulimit -u) or of memory (ulimit -v), or ask for "
                "fewer threads (OMP_NUM_THREADS)") {}

bool forked_after_threads() {
    const pid_t process = with_threads.load(std::memory_order_relaxed);
    return process != 0 && process != getpid();
}

int usable_threads(int wanted) {
    const int threads = wanted > 0 ? wanted : omp_get_max_threads();
    if (threads <= 1 || forked_after_threads()) return 1;
    thread_local int most = 1;  // OpenMP keeps a team for every thread that has regions
    if (threads > most) {
        // one more than needed, because this thread is one of the team
        const int started = start_threads(threads);
        if (started < threads) throw ThreadError(threads, std::max(1, started));
        most = threads;
    }
    with_threads.store(getpid(), std::memory_order_relaxed);
    return threads;
}

// -- locks ---------------------------------------------------------------------------------------

struct ForkHandlers {
    std::mutex mutex;
    std::set<ForkAwareMutex*> all;

    static ForkHandlers& get() {
        static auto* const handlers = new ForkHandlers();  // outlives every mutex
        return *handlers;
    }
    ForkHandlers() { pthread_atfork(&before, &parent, &child); }
    static void before() { get().mutex.lock(); }
    static void parent() { get().mutex.unlock(); }
    static void child() {
        for (ForkAwareMutex* each : get().all) {
            if (each->mutex_.try_lock())
                each->mutex_.unlock();
            else
                each->orphaned_ = true;
        }
        get().mutex.unlock();
    }
};

ForkAwareMutex::ForkAwareMutex() {
    ForkHandlers& handlers = ForkHandlers::get();
    const std::lock_guard<std::mutex> guard(handlers.mutex);
    handlers.all.insert(this);
}

ForkAwareMutex::~ForkAwareMutex() {
    ForkHandlers& handlers = ForkHandlers::get();
    const std::lock_guard<std::mutex> guard(handlers.mutex);
    handlers.all.erase(this);
}

void ForkAwareMutex::lock() {
    if (orphaned_)
        throw std::runtime_error(
            "this process was forked while another thread of its parent used the model: open the "
            "model again, or start processes with 'spawn'");
    mutex_.lock();
}

}  // namespace mdcg
