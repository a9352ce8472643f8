// Runs a generated CUDA kernel on the host, one block after the other: every thread is a coroutine
// that runs until it waits, in an order drawn anew in every round. Wrong barriers show as wrong
// results, as "left" aborts, or as shared memory read before it is written (it starts as NaN).

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
using std::max;
using std::min;

namespace emulator {

struct Index {
    int x;
};

struct Thread {
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    int number;
    bool done;
};

struct Barrier {
    int arrived = 0, generation = 0, present = 0;
};

constexpr int kStack = 256 * 1024, kGuard = 64;

std::vector<Thread> threads;
std::vector<Barrier> warps;
Barrier block_barrier;
ucontext_t scheduler;
Thread* current = nullptr;
Index block;
void* shared_memory = nullptr;
double exchanged[32][32];  // [warp][lane]

inline void fail(const char* what) {
    std::fprintf(stderr, "emulated kernel: %s\n", what);
    std::abort();
}

inline void yield() {
    Thread* const self = current;
    swapcontext(&self->context, &scheduler);
}

inline void wait(Barrier& barrier, int size) {
    const int generation = barrier.generation;
    if (++barrier.arrived == size) {
        barrier.arrived = 0;
        ++barrier.generation;
        return;
    }
    while (barrier.generation == generation) {
        if (barrier.present != size) fail("threads left before a barrier");
        yield();
    }
}

inline void wait_warp() { wait(warps[current->number / 32], 32); }

template <class V> V exchange(V value, int source) {
    const int warp = current->number / 32, lane = current->number % 32;
    exchanged[warp][lane] = double(value);
    wait_warp();
    const V result = V(exchanged[warp][source]);
    wait_warp();
    return result;
}

template <class V> const V* aligned(const V* p) {
    if (reinterpret_cast<std::size_t>(p) % sizeof(V)) fail("misaligned access");
    return p;
}

}  // namespace emulator

#define threadIdx (emulator::Index{emulator::current->number})
#define blockIdx (emulator::block)

inline std::size_t __cvta_generic_to_shared(const void* p) {
    return reinterpret_cast<std::size_t>(p);
}
inline void __syncwarp() { emulator::wait_warp(); }
inline void __syncthreads() {
    emulator::wait(emulator::block_barrier, int(emulator::threads.size()));
}
template <class V> V __shfl_xor_sync(unsigned, V value, int mask) {
    return emulator::exchange(value, (emulator::current->number % 32) ^ mask);
}
template <class V> V __shfl_down_sync(unsigned, V value, int distance) {
    const int lane = emulator::current->number % 32;
    return emulator::exchange(value, lane + distance < 32 ? lane + distance : lane);
}

struct float2 {
    float x, y;
};
struct float4 {
    float x, y, z, w;
};
struct double2 {
    double x, y;
};
inline float2 make_float2(float a, float b) { return {a, b}; }
inline float4 make_float4(float a, float b, float c, float d) { return {a, b, c, d}; }
inline double2 make_double2(double a, double b) { return {a, b}; }
template <class V> V __ldg(const V* p) { return *emulator::aligned(p); }
template <class V> V __ldcs(const V* p) { return *emulator::aligned(p); }
template <class V> void __stcs(V* p, V value) { *const_cast<V*>(emulator::aligned(p)) = value; }

// The generated text comes here; ARGUMENTS and KERNEL are its parameter type and entry.
@SOURCE@

static ARGUMENTS arguments;

static void run_thread() {
    KERNEL(arguments);
    emulator::current->done = true;
    --emulator::warps[emulator::current->number / 32].present;
    --emulator::block_barrier.present;
    emulator::yield();
}

extern "C" void emulate(const void* values, long long blocks, int count, int shared, int seed) {
    using namespace emulator;
    std::memcpy(&arguments, values, sizeof arguments);
    std::mt19937 random(seed);
    std::vector<double> memory((shared + kGuard) / sizeof(double) + 2);
    void* start = memory.data();
    std::size_t space = memory.size() * sizeof(double);
    char* const bytes = static_cast<char*>(std::align(16, shared + kGuard, start, space));
    emulator::shared_memory = bytes;
    threads.resize(count);
    std::vector<int> order(count);
    for (long long b = 0; b < blocks; ++b) {
        std::memset(bytes, 0xff, shared + kGuard);
        block.x = int(b);
        warps.assign(count / 32, Barrier{0, 0, 32});
        block_barrier = Barrier{0, 0, count};
        for (int i = 0; i < count; ++i) {
            Thread& thread = threads[i];
            order[i] = thread.number = i;
            thread.done = false;
            if (!thread.stack) thread.stack.reset(new char[kStack]);
            getcontext(&thread.context);
            thread.context.uc_stack.ss_sp = thread.stack.get();
            thread.context.uc_stack.ss_size = kStack;
            thread.context.uc_link = &scheduler;
            makecontext(&thread.context, run_thread, 0);
        }
        for (int left = count; left;) {
            std::shuffle(order.begin(), order.end(), random);
            for (const int i : order) {
                current = &threads[i];
                if (current->done) continue;
                swapcontext(&scheduler, &current->context);
                left -= threads[i].done;
            }
        }
        for (int i = 0; i < kGuard; ++i)
            if (static_cast<unsigned char>(bytes[shared + i]) != 0xff)
                fail("wrote past its shared memory");
    }
}
