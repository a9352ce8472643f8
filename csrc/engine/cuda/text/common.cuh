R"CUDA(
// Before every fixed text: T and Long are defined.
#define INLINE __device__ __forceinline__

// Number of this thread in the grid, and of all threads.
INLINE Long thread_number() { return Long(blockIdx.x) * blockDim.x + threadIdx.x; }
INLINE Long thread_count() { return Long(gridDim.x) * blockDim.x; }
)CUDA"
