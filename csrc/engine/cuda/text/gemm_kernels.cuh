R"CUDA(
// Numbers of tiles are put before the text: rows, columns, depth, rows and columns of a thread; and
// how many blocks a multiprocessor is to hold.
typedef Tile<GEMM_LARGE> Large;
extern "C" __global__ void __launch_bounds__(Large::THREADS, GEMM_LARGE_BLOCKS)
    gemm_large(const __grid_constant__ Products all) {
    __shared__ __align__(16) T a_slices[2 * Large::A_ITEMS];
    __shared__ __align__(16) T b_slices[2 * Large::B_ITEMS];
    multiply_tile<Large>(all, a_slices, b_slices);
}
typedef Tile<GEMM_MEDIUM> Medium;
extern "C" __global__ void __launch_bounds__(Medium::THREADS, GEMM_MEDIUM_BLOCKS)
    gemm_medium(const __grid_constant__ Products all) {
    __shared__ __align__(16) T a_slices[2 * Medium::A_ITEMS];
    __shared__ __align__(16) T b_slices[2 * Medium::B_ITEMS];
    multiply_tile<Medium>(all, a_slices, b_slices);
}
typedef Tile<GEMM_SMALL> Small;
extern "C" __global__ void __launch_bounds__(Small::THREADS, GEMM_SMALL_BLOCKS)
    gemm_small(const __grid_constant__ Products all) {
    __shared__ __align__(16) T a_slices[2 * Small::A_ITEMS];
    __shared__ __align__(16) T b_slices[2 * Small::B_ITEMS];
    multiply_tile<Small>(all, a_slices, b_slices);
}
)CUDA"
