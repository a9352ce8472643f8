#include "fibers.hpp"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a call must preserve, and continues on another stack.
extern "C" __attribute__((visibility("hidden"))) void emulation_switch(void** save, void* to);
asm(R"(
.text
.type emulation_switch,@function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch,.-emulation_switch
)");
#endif

namespace emulation {

namespace {

constexpr int kIllegalAddress = 700, kLaunchTimeout = 702, kLaunchFailed = 719;
constexpr std::size_t kStack = 256 * 1024, kPage = 4096;
constexpr unsigned kWarp = 32;

// ---- stacks ------------------------------------------------------------------------------------

void enter();

#if defined(__x86_64__)
struct Stack {
    void* top = nullptr;
    void prepare(char* memory) {
        void** p = reinterpret_cast<void**>(memory + kStack);
        *--p = nullptr;  // aligns the stack like after a call
        *--p = reinterpret_cast<void*>(&enter);
        for (int i = 0; i < 6; ++i) *--p = nullptr;
        top = p;
    }
};
inline void switch_to(Stack& from, Stack& to) { emulation_switch(&from.top, to.top); }
#else
struct Stack {
    ucontext_t context;
    void prepare(char* memory) {
        getcontext(&context);
        context.uc_stack.ss_sp = memory;
        context.uc_stack.ss_size = kStack;
        context.uc_link = nullptr;
        makecontext(&context, enter, 0);
    }
};
inline void switch_to(Stack& from, Stack& to) { swapcontext(&from.context, &to.context); }
#endif

// ---- state of the block that runs --------------------------------------------------------------

struct Copy {
    void* to;
    const void* from;
    int size, bytes, group;
};

enum State { kReady, kAtBarrier, kAtWarp, kDone };

struct Fiber : Thread {
    Stack stack;
    State state = kReady;
    std::uint64_t generation = 0;   // awaited
    unsigned waits_for = 0;         // mask of a warp
    const void* barrier = nullptr;  // where it waits for the block
    int group = 0;                  // of copies
    std::vector<Copy> copies;
};

// Lanes of one mask that exchange values. Values of two exchanges are kept: no lane begins the one
// after the next before all lanes have read this one.
struct Meeting {
    unsigned mask = 0, arrived = 0, lanes[2] = {0, 0};
    Kind kind = kSync;
    std::uint64_t generation = 0;
    unsigned long long values[2][kWarp * kWords];
};

struct Warp {
    unsigned live = 0;
    std::vector<Meeting> meetings;
};

std::vector<Fiber> fibers;
std::vector<Warp> warps;
std::vector<unsigned> ready;
std::vector<unsigned> at_barrier;
char* stacks = nullptr;
Stack scheduler;
unsigned live = 0;
const Launch* running = nullptr;
int failure = 0;
sigjmp_buf recovery;
thread_local bool in_kernel = false;
std::mt19937 generator;

Fiber& current();

void report(const char* what) {
    std::fprintf(stderr, "emulated kernel %s, block %u", running->name.c_str(), runtime().block.x);
    if (runtime().current != nullptr)
        std::fprintf(stderr, ", thread %u", runtime().current->index.x);
    std::fprintf(stderr, ": %s\n", what);
}

void suspend() { switch_to(current().stack, scheduler); }

void wake(unsigned number) {
    fibers[number].state = kReady;
    ready.push_back(number);
}

[[noreturn]] void fail(const char* what) {
    report(what);
    failure = kLaunchFailed;
    for (;;) suspend();
}

// ---- barriers ----------------------------------------------------------------------------------

// All lanes of a wavefront must wait at one place, because it arrives at a barrier as a whole.
void check_wavefronts() {
    const unsigned lanes = unsigned(running->kernel->wavefront);
    std::vector<const void*> places(fibers.size() / lanes + 1);
    for (const unsigned number : at_barrier) {
        const void*& place = places[number / lanes];
        if (place == nullptr) place = fibers[number].barrier;
        if (place != fibers[number].barrier)
            fail("the halves of a wavefront meet in different barriers");
    }
}

void open_if_complete() {
    if (at_barrier.size() < live) return;
    if (running->kernel->wavefront > int(kWarp)) check_wavefronts();
    for (const unsigned number : at_barrier) wake(number);
    at_barrier.clear();
}

void barrier() {
    current().state = kAtBarrier;
    current().barrier = __builtin_return_address(0);
    at_barrier.push_back(current().index.x);
    open_if_complete();
    suspend();
}

// ---- warps -------------------------------------------------------------------------------------

void close_if_complete(Warp& warp, unsigned first, Meeting& meeting) {
    if (meeting.arrived == 0 || (meeting.mask & warp.live & ~meeting.arrived) != 0) return;
    meeting.lanes[meeting.generation & 1] = meeting.arrived;
    const unsigned arrived = meeting.arrived;
    meeting.arrived = 0;
    ++meeting.generation;
    for (unsigned lane = 0; lane < kWarp; ++lane)
        if ((arrived >> lane & 1) != 0 && fibers[first + lane].state == kAtWarp) wake(first + lane);
}

const unsigned long long* exchange(unsigned mask, Kind kind, const unsigned long long* value,
                                   int words, unsigned* lanes) {
    Fiber& self = current();
    const unsigned lane = self.index.x % kWarp, first = self.index.x - lane;
    Warp& warp = warps[self.index.x / kWarp];
    if ((mask >> lane & 1) == 0) fail("a lane is not in the mask of its own operation");
    std::size_t place = 0;
    while (place < warp.meetings.size() && warp.meetings[place].mask != mask) ++place;
    if (place == warp.meetings.size()) {
        warp.meetings.emplace_back();
        warp.meetings.back().mask = mask;
    }
    {
        Meeting& meeting = warp.meetings[place];
        if (meeting.arrived != 0 && meeting.kind != kind)
            fail("lanes of a warp meet in different operations");
        const std::uint64_t generation = meeting.generation;
        if (meeting.arrived == 0)  // lanes that have ended give NaN
            std::memset(meeting.values[generation & 1], 0xff, sizeof meeting.values[0]);
        meeting.kind = kind;
        meeting.arrived |= 1u << lane;
        std::copy(value, value + words, meeting.values[generation & 1] + lane * words);
        self.generation = generation;
        self.waits_for = mask;
        close_if_complete(warp, first, meeting);
        if (meeting.generation == generation) {
            self.state = kAtWarp;
            suspend();
        }
    }
    // meetings of other masks may have moved the vector
    const Meeting& meeting = warp.meetings[place];
    *lanes = meeting.lanes[self.generation & 1];
    return meeting.values[self.generation & 1];
}

// ---- copies to shared memory -------------------------------------------------------------------

void copy(void* to, const void* from, int size, int bytes) {
    const auto aligned = [&](const void* p) {
        return reinterpret_cast<std::uintptr_t>(p) % static_cast<unsigned>(size) == 0;
    };
    if (!aligned(to) || !aligned(from)) fail("an asynchronous copy is not aligned to its size");
    if (bytes < 0 || bytes > size) fail("an asynchronous copy reads more than its size");
    Fiber& self = current();
    self.copies.push_back({to, from, size, bytes, self.group});
}

void commit() { ++current().group; }

// Waits until at most `groups` committed groups are pending, or for all copies if it is negative.
void wait_copies(int groups) {
    Fiber& self = current();
    const int before = groups < 0 ? self.group + 1 : self.group - groups;
    std::size_t done = 0;
    while (done < self.copies.size() && self.copies[done].group < before) {
        const Copy& c = self.copies[done++];
        std::memcpy(c.to, c.from, static_cast<std::size_t>(c.bytes));
        std::memset(static_cast<char*>(c.to) + c.bytes, 0,
                    static_cast<std::size_t>(c.size - c.bytes));
    }
    self.copies.erase(self.copies.begin(), self.copies.begin() + static_cast<long>(done));
}

// ---- the scheduler -----------------------------------------------------------------------------

Fiber& current() { return *static_cast<Fiber*>(runtime().current); }

void enter() {
    running->kernel->run(running->parameters);
    Fiber& self = current();
    if (!self.copies.empty()) fail("it ended with copies that no thread waited for");
    self.state = kDone;
    --live;
    const unsigned lane = self.index.x % kWarp;
    Warp& warp = warps[self.index.x / kWarp];
    warp.live &= ~(1u << lane);
    for (Meeting& meeting : warp.meetings) close_if_complete(warp, self.index.x - lane, meeting);
    open_if_complete();
    suspend();
}

void reserve_stacks(unsigned threads) {
    static unsigned reserved = 0;
    if (threads <= reserved) return;
    if (stacks != nullptr) munmap(stacks, reserved * (kStack + kPage));
    void* const memory = mmap(nullptr, threads * (kStack + kPage), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    stacks = static_cast<char*>(memory);
    for (unsigned i = 0; i < threads; ++i)
        mprotect(stacks + i * (kStack + kPage), kPage, PROT_NONE);
    reserved = threads;
}

// HIP's exchanges have no masks: lanes that wait elsewhere do not run, so the others go on. Returns
// whether there is such an exchange.
bool go_on_without_others() {
    if (running->kernel->wavefront == int(kWarp)) return false;
    for (unsigned w = 0; w < warps.size(); ++w)
        for (Meeting& meeting : warps[w].meetings) {
            if (meeting.arrived == 0) continue;
            const unsigned wanted = std::exchange(meeting.mask, meeting.arrived);
            close_if_complete(warps[w], w * kWarp, meeting);
            meeting.mask = wanted;
            return true;
        }
    return false;
}

void explain_deadlock() {
    unsigned at_warp = 0, lanes = 0;
    for (const Fiber& fiber : fibers) {
        if (fiber.state != kAtWarp) continue;
        ++at_warp;
        lanes = fiber.waits_for;
    }
    char text[200];
    std::snprintf(text, sizeof text,
                  "threads wait for ever: %zu at a barrier, %u for lanes of their warp (%#x)",
                  at_barrier.size(), at_warp, lanes);
    runtime().current = nullptr;
    report(text);
    failure = kLaunchTimeout;
}

void run_block(const Launch& launch) {
    const unsigned threads = static_cast<unsigned>(fibers.size());
    std::memset(launch.dynamic_shared, 0xff, launch.dynamic_bytes + kSharedGuard);
    if (launch.static_bytes != 0) std::memset(launch.static_shared, 0xff, launch.static_bytes);
    at_barrier.clear();
    for (unsigned w = 0; w < warps.size(); ++w) {
        const unsigned lanes = std::min(kWarp, threads - w * kWarp);
        warps[w].live = lanes == kWarp ? ~0u : (1u << lanes) - 1;
        warps[w].meetings.clear();
    }
    live = threads;
    ready.resize(threads);
    std::iota(ready.begin(), ready.end(), 0u);
    for (unsigned i = 0; i < threads; ++i) {
        Fiber& fiber = fibers[i];
        fiber.state = kReady;
        fiber.group = 0;
        fiber.copies.clear();
        fiber.stack.prepare(stacks + i * (kStack + kPage) + kPage);
    }
    while (failure == 0) {
        if (ready.empty() && !go_on_without_others()) break;
        const std::size_t chosen = generator() % ready.size();
        const unsigned number = ready[chosen];
        ready[chosen] = ready.back();
        ready.pop_back();
        runtime().current = &fibers[number];
        switch_to(scheduler, fibers[number].stack);
    }
    runtime().current = nullptr;
    if (failure == 0 && live != 0) explain_deadlock();
    if (failure != 0) return;
    for (std::size_t i = 0; i < kSharedGuard; ++i)
        if (static_cast<unsigned char>(launch.dynamic_shared[launch.dynamic_bytes + i]) != 0xff) {
            report("wrote past its dynamic shared memory");
            failure = kIllegalAddress;
            return;
        }
}

void on_signal(int number, siginfo_t* info, void*) {
    if (!in_kernel) {  // another thread's fault: repeated with the default action
        signal(number, SIG_DFL);
        return;
    }
    char text[80];
    if (number == SIGFPE)
        std::snprintf(text, sizeof text, "integer division by zero");
    else if (number == SIGILL)  // what -fsanitize=alignment raises
        std::snprintf(text, sizeof text, "misaligned access");
    else
        std::snprintf(text, sizeof text, "illegal address %p", info->si_addr);
    report(text);
    const bool address = number == SIGSEGV || number == SIGBUS;
    failure = address ? kIllegalAddress : kLaunchFailed;
    siglongjmp(recovery, 1);
}

// While it exists, faults of a kernel become errors of its launch.
class FaultHandler {
public:
    FaultHandler() {
        static char memory[64 * 1024];
        stack_t mine = {};
        mine.ss_sp = memory;
        mine.ss_size = sizeof memory;
        sigaltstack(&mine, &stack_);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        for (std::size_t i = 0; i < std::size(kSignals); ++i)
            sigaction(kSignals[i], &action, &actions_[i]);
        in_kernel = true;
    }
    ~FaultHandler() {
        in_kernel = false;
        for (std::size_t i = 0; i < std::size(kSignals); ++i)
            sigaction(kSignals[i], &actions_[i], nullptr);
        sigaltstack(&stack_, nullptr);
    }

private:
    static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    stack_t stack_ = {};
    struct sigaction actions_[std::size(kSignals)];
};

}  // namespace

Runtime& runtime() {
    static Runtime table = {
        nullptr, {},     {},         {}, barrier, exchange, [](const char* what) { fail(what); },
        copy,    commit, wait_copies};
    return table;
}

int run(const Launch& launch) {
    running = &launch;
    failure = 0;
    static unsigned launches = 0;
    generator.seed(++launches);
    const unsigned threads = launch.block.x;
    reserve_stacks(threads);
    fibers.resize(threads);
    warps.resize((threads + kWarp - 1) / kWarp);
    for (unsigned i = 0; i < threads; ++i) fibers[i].index = {i};
    Runtime& table = runtime();
    table.block_dim = launch.block;
    table.grid_dim = launch.grid;
    const FaultHandler handler;
    if (sigsetjmp(recovery, 1) == 0) {
        // blocks start in no order either
        std::vector<unsigned> order(launch.grid.x);
        std::iota(order.begin(), order.end(), 0u);
        std::shuffle(order.begin(), order.end(), generator);
        for (const unsigned i : order) {
            table.block = {i};
            run_block(launch);
            if (failure != 0) break;
        }
    }
    table.current = nullptr;
    running = nullptr;
    return failure;
}

}  // namespace emulation
