// Ctrl-C during long work: the host is asked, between parts of the work, whether to end it.
#pragma once

#include <atomic>

namespace mdcg {

// Ends the work under way because the host wants it. It is not a std::exception, so that no handler
// of errors takes an interruption for a failure.
struct Interrupted {};

// `poll` throws Interrupted, or a type derived from it, to end the work. It is called by threads
// that called the library, never by those that the library started. Null: nothing is asked.
void set_interrupt_poll(void (*poll)());

// While it lives, the present thread asks `poll` instead, or nothing where that is null: two hosts
// in one process, Python and a program that calls the C interface, do not interrupt each other.
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

// Marks the present thread as one that the library started and that ends when `stop` is set.
class HelperScope {
public:
    explicit HelperScope(const std::atomic<bool>& stop);
    ~HelperScope();
    HelperScope(const HelperScope&) = delete;
    HelperScope& operator=(const HelperScope&) = delete;
};

}  // namespace mdcg
