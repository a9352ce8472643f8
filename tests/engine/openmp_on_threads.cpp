// The parts of GNU OpenMP that the engine uses, on std::thread: its own runtime synchronises in
// ways that the thread sanitizer does not see, and would report as races.
#include <omp.h>

#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

namespace {

struct Loop {
    long next, end, increment, chunk;
};

struct Team {
    explicit Team(int threads) : size(threads) {}
    const int size;
    std::mutex mutex;
    std::condition_variable changed;
    int waiting = 0;
    unsigned long barriers = 0;
    std::map<unsigned long, Loop> loops;  // by number, the same in all threads
};

thread_local Team* team = nullptr;
thread_local int number = 0;
thread_local unsigned long loop = 0;

std::recursive_mutex critical;

void barrier() {
    if (team == nullptr) return;
    std::unique_lock<std::mutex> lock(team->mutex);
    const unsigned long mine = team->barriers;
    if (++team->waiting == team->size) {
        team->waiting = 0;
        ++team->barriers;
        team->changed.notify_all();
        return;
    }
    while (team->barriers == mine) team->changed.wait(lock);
}

bool take(long* begin, long* end) {
    const std::lock_guard<std::mutex> lock(team->mutex);
    Loop& own = team->loops.at(loop);
    if (own.next >= own.end) return false;
    *begin = own.next;
    own.next += own.chunk * own.increment;
    *end = own.next < own.end ? own.next : own.end;
    return true;
}

}  // namespace

extern "C" {

int omp_get_max_threads() {
    const char* named = std::getenv("OMP_NUM_THREADS");
    return named != nullptr ? std::atoi(named) : 3;
}
int omp_get_num_threads() { return team != nullptr ? team->size : 1; }
int omp_get_thread_num() { return number; }

void GOMP_parallel(void (*function)(void*), void* data, unsigned threads, unsigned) {
    Team* const outer = team;
    const int outer_number = number;
    const unsigned long outer_loop = loop;
    Team own(threads != 0 ? static_cast<int>(threads) : omp_get_max_threads());
    const auto work = [&](int mine) {
        team = &own;
        number = mine;
        loop = 0;
        function(data);
    };
    std::vector<std::thread> others;
    for (int t = 1; t < own.size; ++t) others.emplace_back(work, t);
    work(0);
    for (std::thread& thread : others) thread.join();
    team = outer;
    number = outer_number;
    loop = outer_loop;
}

bool GOMP_loop_nonmonotonic_dynamic_start(long begin, long end, long increment, long chunk,
                                          long* first, long* last) {
    ++loop;
    {
        const std::lock_guard<std::mutex> lock(team->mutex);
        team->loops.emplace(loop, Loop{begin, end, increment, chunk});
    }
    return take(first, last);
}
bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* last) { return take(first, last); }
void GOMP_loop_end() { barrier(); }
void GOMP_loop_end_nowait() {}
void GOMP_barrier() { barrier(); }
void GOMP_critical_start() { critical.lock(); }
void GOMP_critical_end() { critical.unlock(); }
void GOMP_critical_name_start(void**) { critical.lock(); }
void GOMP_critical_name_end(void**) { critical.unlock(); }
void GOMP_atomic_start() { critical.lock(); }
void GOMP_atomic_end() { critical.unlock(); }
}
