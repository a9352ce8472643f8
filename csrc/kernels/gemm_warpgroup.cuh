#include "kernels/gemm_tensor.cuh"

// Multiplies on tensor cores of Hopper GPUs with instructions of four warps, which read b from
// shared memory. Numbers are split, multiplied and summed as in Fragment with GEMM_BITS 24, so that
// results are equal bit by bit. GEMM_WARPGROUP is defined before, like the tiles of gemm.cuh.

// Copies slices of a and images of b. The depth of every part is a multiple of DEPTH.
template <typename S>
struct Images : RowCopies<S> {
    using Rows = RowCopies<S>;
    using Rows::left;
    using Rows::p;
    static constexpr int B_STEP = S::THREADS * LANE_ITEMS;  // items of b
    static_assert(S::GROUPS == 1 && S::ACROSS == 1, "a warp multiplies all columns of an image");
    static_assert(S::THREADS % 128 == 0 && S::B_ITEMS % B_STEP == 0, "four warps, and copies");
    int first_column;
    const T* b;

    INLINE Images(const GemmProducts<T>& all, const GemmProduct<T>& product, int column)
        : Rows(all, product), first_column(column) {}
    INLINE Long image_step() const {
        return Long((p.columns + S::COLUMNS - 1) / S::COLUMNS) * S::B_ITEMS;
    }
    INLINE void start(const Places<S>& places, T* stage) {
        if (left <= 0)
            b = p.images + (Rows::begin_part(places).row / S::DEPTH * image_step() +
                            first_column / S::COLUMNS * S::B_ITEMS + threadIdx.x * LANE_ITEMS);
        T* const to = stage + S::A_ITEMS + threadIdx.x * LANE_ITEMS;
#pragma unroll
        for (int i = 0; i < S::B_ITEMS / B_STEP; ++i)
            start_copy(to + i * B_STEP, b + i * B_STEP, 16);
        b += image_step();
        Rows::start(stage, 16);
    }
};

// A warp computes M = 16 rows and N = 64 columns.
template <int M, int N>
struct Warpgroup {
    template <typename S>
    using Copies = Images<S>;
    static constexpr int ITEMS = M * N / 32;
    static_assert(M == 16 && N == 64, "of the instruction");
    // lanes (l / 4, l % 4) read different banks
    static constexpr int a_stride(int depth) { return depth + 8; }
    // An image has the large parts of all numbers, then the small parts.
    static constexpr int b_stride(int columns) { return 2 * columns; }
    // Bytes to the next eight columns, and to the next four items of the shared dimension. A block
    // of 8 columns by 4 items is contiguous, with 16 bytes of each column.
    static constexpr int NEXT_COLUMNS = 128, NEXT_ITEMS = N / 8 * NEXT_COLUMNS;
    T sum[ITEMS];

    static INLINE int x() { return threadIdx.x % 4; }
    static INLINE int y() { return threadIdx.x % 32 / 4; }
    // Makes this thread's copies in shared memory visible to the instructions.
    static INLINE void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
    // An instruction is asynchronous. The compiler must not move uses of its registers across this
    // call.
    static INLINE void hold(float& x) { asm volatile("" : "+f"(x)::"memory"); }
    static INLINE void hold(unsigned& x) { asm volatile("" : "+r"(x)::"memory"); }
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) sum[i] = T(0);
    }
    static INLINE unsigned long long descriptor(const T* b) {
        const unsigned address = unsigned(__cvta_generic_to_shared(b)) & 0x3ffff;
        return address / 16 | (unsigned long long)(NEXT_ITEMS / 16) << 16 |
               (unsigned long long)(NEXT_COLUMNS / 16) << 32;
    }
    // d = a b, or d + a b if ADD is 1, for eight items of the shared dimension
    template <int ADD>
    static INLINE void add(float* d, const unsigned* a, unsigned long long b) {
        asm volatile(
            "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {%0, %1, %2, %3, %4, %5, %6, "
            "%7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
            "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, %37, 1, 1;"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
              "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),
              "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]),
              "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
              "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
              "+f"(d[31])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(ADD));
    }
    template <int DEPTH, int A_STRIDE, int B_STRIDE>
    INLINE void multiply(const T* a, const T* b) {
        constexpr int EIGHT = 2 * NEXT_ITEMS / 16, SMALL = DEPTH * N * int(sizeof(T)) / 16;
        a += y() * A_STRIDE + 2 * x();
        const unsigned long long image = descriptor(b);
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            Fragment::Left left;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float2 found = *(const float2*)(a + i % 2 * 8 * A_STRIDE + k + i / 2 * 8);
                left.set(i / 2 * 4 + i % 2, found.x);
                left.set(i / 2 * 4 + i % 2 + 2, found.y);
            }
            const unsigned long long large = image + k / 8 * EIGHT, small = large + SMALL;
            float found[ITEMS];  // uninitialised: the first instruction does not read it
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                hold(left.large[i]);
                hold(left.small[i]);
            }
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            add<0>(found, left.small, large);
            add<1>(found, left.large, small);
            add<1>(found, left.small + 4, large + EIGHT);
            add<1>(found, left.large + 4, small + EIGHT);
            add<1>(found, left.large, large);
            add<1>(found, left.large + 4, large + EIGHT);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) {
                hold(found[i]);
                sum[i] += found[i];
            }
        }
    }
    // Calls row(r), then put(column, items) for each pack of that row.
    template <typename Row, typename Put>
    INLINE void each(const Row& row, const Put& put) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            row(8 * half + y());
#pragma unroll
            for (int wide = 0; wide < N / 16; ++wide) {
                Pack out;
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v)
                    out.v[v] = sum[8 * wide + v / 2 * 4 + 2 * half + v % 2];
                put(16 * wide + x() * LANE_ITEMS, out);
            }
        }
    }
};

typedef Tile<GEMM_WARPGROUP> Group;
extern "C" __global__ void __launch_bounds__(Group::THREADS, GEMM_WARPGROUP_BLOCKS)
    gemm_warpgroup(const __grid_constant__ GemmProducts<T> all) {
    extern __shared__ Pack shared_memory[];
    multiply_tile<Group>(all, (T*)shared_memory);
}
