// Ctrl-C during long work: between parts of the work, the library asks the host whether to end it.
#pragma once

#include <atomic>

namespace mdcg {

// Thrown to end the current work because the host asks for it. It is not a std::exception, so that
// error handlers do not take an interruption for a failure.
struct Interrupted {};

// `poll` throws Interrupted, or a type derived from it, to end the work. It is called by threads
// that called the library, never by those that the library started. Null: nothing is asked.
void set_interrupt_poll(void (*poll)());

// While this object exists, the current thread asks `poll` instead; null: it does not ask. So two
// hosts in one process, Python and a program that calls the C interface, do not interrupt each
// other.
class InterruptScope {
public:
    explicit InterruptScope(void (*poll)());
    ~InterruptScope();
    InterruptScope(const InterruptScope&) = delete;
    InterruptScope& operator=(const InterruptScope&) = delete;

private:
    const InterruptScope* outer_;
    void (*poll_)();
    friend void poll_interrupt();
};

// Asks the host, at most every 50 ms; otherwise one atomic load and a clock read. In a thread with
// a HelperScope: throws Interrupted once its flag is set.
void poll_interrupt();

// Marks the current thread as one that the library started and that ends when `stop` is set.
class HelperScope {
public:
    explicit HelperScope(const std::atomic<bool>& stop);
    ~HelperScope();
    HelperScope(const HelperScope&) = delete;
    HelperScope& operator=(const HelperScope&) = delete;
};

}  // namespace mdcg
