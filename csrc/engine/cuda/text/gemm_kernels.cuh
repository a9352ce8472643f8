R"CUDA(
// Put before the text: GEMM_KERNELS, a list of GEMM(name, Plain or Tensor, rows, columns, depth,
// stages, rows and columns of a warp, groups, blocks that a multiprocessor is to hold).
#define GEMM(NAME, UNIT, ROWS, COLUMNS, DEPTH, STAGES, WARP_ROWS, WARP_COLUMNS, GROUPS, BLOCKS)    \
    typedef Tile<UNIT, ROWS, COLUMNS, DEPTH, STAGES, WARP_ROWS, WARP_COLUMNS, GROUPS> Tile_##NAME; \
    extern "C" __global__ void __launch_bounds__(Tile_##NAME::THREADS, BLOCKS)                     \
        NAME(const __grid_constant__ Products all) {                                               \
        extern __shared__ Pack shared_memory[];                                                    \
        multiply_tile<Tile_##NAME>(all, (T*)shared_memory);                                        \
    }
GEMM_KERNELS
)CUDA"
