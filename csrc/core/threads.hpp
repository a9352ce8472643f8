// Threads of parallel regions, exceptions inside parallel regions, and locks that survive a fork.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <string>

namespace mdcg {

// The system cannot start the threads of a region: the limit of processes or memory is reached.
class ThreadError : public std::bad_alloc {
public:
    ThreadError(int wanted, int started);
    const char* what() const noexcept override { return sentence_.c_str(); }

private:
    std::string sentence_;
};

// Number of threads for a region: `wanted`, or OpenMP's own choice if that is 0. Call this before
// every region. Throws ThreadError: GNU OpenMP ends the process if it cannot start a thread, so
// this function starts and ends as many threads before the first region of a size. Returns 1 in a
// process that was forked after a region had several threads, because GNU OpenMP's threads do not
// survive a fork, and waiting for them would never end.
int usable_threads(int wanted);

// Whether this process was forked after a region of this library had several threads.
bool forked_after_threads();

// A mutex that is orphaned in a forked child if another thread, which the child does not have, held
// it in the parent.
class ForkAwareMutex {
public:
    ForkAwareMutex();
    ~ForkAwareMutex();
    ForkAwareMutex(const ForkAwareMutex&) = delete;
    ForkAwareMutex& operator=(const ForkAwareMutex&) = delete;

    void lock();  // throws std::runtime_error if it is orphaned
    void unlock() { mutex_.unlock(); }
    bool is_orphaned() const { return orphaned_; }

private:
    friend struct ForkHandlers;
    std::mutex mutex_;
    bool orphaned_ = false;
};

// Keeps the first exception inside a parallel region, which exceptions must not leave. It is thrown
// after the region.
class FirstError {
public:
    void keep() noexcept {
#pragma omp critical(mdcg_first_error)
        if (!error_) {
            error_ = std::current_exception();
            failed_.store(true, std::memory_order_relaxed);
        }
    }
    bool failed() const { return failed_.load(std::memory_order_relaxed); }
    void rethrow() const {
        if (error_) std::rethrow_exception(error_);
    }

private:
    std::exception_ptr error_;
    std::atomic<bool> failed_{false};
};

}  // namespace mdcg
