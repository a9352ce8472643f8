R"CUDA(
// Before every fixed text: T and Long are defined.
#define INLINE __device__ __forceinline__

// Length of a slot that is not shorter than r_max, Å: longer than any cutoff.
constexpr double DEAD = 1e3;

// Number of this thread in the grid, and of all threads.
INLINE Long thread_number() { return Long(blockIdx.x) * blockDim.x + threadIdx.x; }
INLINE Long thread_count() { return Long(gridDim.x) * blockDim.x; }

// First in kernels that may be launched while the one before them still runs: lets the next one be
// launched, and waits for what was enqueued before.
INLINE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
)CUDA"
