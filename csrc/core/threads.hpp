// Threads of parallel regions, and what is thrown inside of them.
#pragma once

#include <atomic>
#include <exception>

namespace mdcg {

// How many threads a region may have: `wanted`, or OpenMP's own choice where that is 0; one in a
// process that was forked after a region of this library had several: GNU OpenMP's threads do not
// survive a fork, and waiting for them would last forever. Ask before every region.
int usable_threads(int wanted);

// Whether this process is such a child.
bool forked_after_threads();

// The first exception of a parallel region, which none may leave, to be thrown after it.
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
