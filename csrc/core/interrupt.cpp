#include "core/interrupt.hpp"

#include <chrono>

namespace mdcg {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds INTERVAL{50};

std::atomic<void (*)()> host_poll{nullptr};
thread_local const std::atomic<bool>* stop_of_helper = nullptr;
thread_local const InterruptScope* innermost = nullptr;

}  // namespace

void set_interrupt_poll(void (*poll)()) { host_poll = poll; }

void poll_interrupt() {
    if (stop_of_helper != nullptr) {
        if (*stop_of_helper) throw Interrupted();
        return;
    }
    void (*const poll)() =
        innermost != nullptr ? innermost->poll_ : host_poll.load(std::memory_order_relaxed);
    if (poll == nullptr) return;
    thread_local Clock::time_point next{};
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + INTERVAL;
    poll();
}

InterruptScope::InterruptScope(void (*poll)()) : outer_(innermost), poll_(poll) {
    innermost = this;
}
InterruptScope::~InterruptScope() { innermost = outer_; }

HelperScope::HelperScope(const std::atomic<bool>& stop) { stop_of_helper = &stop; }
HelperScope::~HelperScope() { stop_of_helper = nullptr; }

}  // namespace mdcg
