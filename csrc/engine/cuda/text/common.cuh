R"CUDA(
// Before every fixed text: T and Long are defined.
#define INLINE __device__ __forceinline__

// Length of a slot that is not shorter than r_max, Å: longer than any cutoff.
constexpr double DEAD = 1e3;

// Number of this thread in the grid, and of all threads.
INLINE Long thread_number() { return Long(blockIdx.x) * blockDim.x + threadIdx.x; }
INLINE Long thread_count() { return Long(gridDim.x) * blockDim.x; }
)CUDA"
