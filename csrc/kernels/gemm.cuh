#include "kernels/gemm_plain.cuh"
#include "kernels/gemm_tensor.cuh"

// Defined before for each tile: the arguments of Tile (unit, rows, columns, depth, stages, rows and
// columns of a warp, groups), and how many blocks a multiprocessor is to hold.
typedef Tile<GEMM_LARGE> Large;
extern "C" __global__ void __launch_bounds__(Large::THREADS, GEMM_LARGE_BLOCKS)
    gemm_large(const __grid_constant__ GemmProducts<T> all) {
    extern __shared__ Pack shared_memory[];
    multiply_tile<Large>(all, (T*)shared_memory);
}
typedef Tile<GEMM_MEDIUM> Medium;
extern "C" __global__ void __launch_bounds__(Medium::THREADS, GEMM_MEDIUM_BLOCKS)
    gemm_medium(const __grid_constant__ GemmProducts<T> all) {
    extern __shared__ Pack shared_memory[];
    multiply_tile<Medium>(all, (T*)shared_memory);
}
typedef Tile<GEMM_SMALL> Small;
extern "C" __global__ void __launch_bounds__(Small::THREADS, GEMM_SMALL_BLOCKS)
    gemm_small(const __grid_constant__ GemmProducts<T> all) {
    extern __shared__ Pack shared_memory[];
    multiply_tile<Small>(all, (T*)shared_memory);
}
typedef Tile<GEMM_DEEP> Deep;
extern "C" __global__ void __launch_bounds__(Deep::THREADS, GEMM_DEEP_BLOCKS)
    gemm_deep(const __grid_constant__ GemmProducts<T> all) {
    extern __shared__ Pack shared_memory[];
    multiply_tile<Deep>(all, (T*)shared_memory);
}
