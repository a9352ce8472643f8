#pragma once
#include "kernels/gemm_tiles.cuh"

// Multiplies on tensor cores. GEMM_BITS 53: double, with the results of plain arithmetic;
// GEMM_BITS 24: float, where each number is the sum of two numbers in tf32.
#ifdef GEMM_BITS
// The order of the shared dimension and of the columns is free as long as both matrices agree, so
// each lane takes neighbouring items of both.

// One instruction multiplies 16 x 8 by 8 x 8 items. Lane l has four items of a (rows l / 4 and
// l / 4 + 8 of two columns), two items of b (these two rows of column l / 4), and four sums.
#if GEMM_BITS == 24
INLINE unsigned tf32(float x) {
    unsigned bits;
#if __CUDA_ARCH__ < 900
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#else
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
#endif
    return bits;
}
// to = c + a b, for eight items of the shared dimension
INLINE void multiply_tf32(float* to, const unsigned* a, const unsigned* b, const float* c) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
          "f"(c[2]), "f"(c[3]));
}
// A product of two such sums has four terms. The product of both small parts is below rounding and
// is left out. Tensor cores truncate sums where plain additions round, so plain additions sum the
// partial sums of sixteen products.
struct Fragment {
    static constexpr int CHUNKS = 2;
    template <int N>
    struct Numbers {
        unsigned large[N], small[N];
        INLINE void set(int i, float x) {
            large[i] = tf32(x);
            small[i] = __float_as_uint(x - __uint_as_float(large[i]));
        }
    };
    typedef Numbers<8> Left;
    typedef Numbers<4> Right;
    static INLINE void add(float* sum, const Left& a, const Right& b) {
        const float zeros[4] = {};
        float found[4];
        multiply_tf32(found, a.small, b.large, zeros);
        multiply_tf32(found, a.large, b.small, found);
        multiply_tf32(found, a.small + 4, b.large + 2, found);
        multiply_tf32(found, a.large + 4, b.small + 2, found);
        multiply_tf32(found, a.large, b.large, found);
        multiply_tf32(found, a.large + 4, b.large + 2, found);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[i] += found[i];
    }
};
#else
struct Fragment {
    static constexpr int CHUNKS = 1;
    struct Left {
        double v[4];
        INLINE void set(int i, double x) { v[i] = x; }
    };
    struct Right {
        double v[2];
        INLINE void set(int i, double x) { v[i] = x; }
    };
    static INLINE void add_8(double& d0, double& d1, double a, double b) {
        asm volatile(
            "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(d0), "+d"(d1)
            : "d"(a), "d"(b));
    }
    static INLINE void add(double* sum, const Left& a, const Right& b) {
#if __CUDA_ARCH__ < 900  // an instruction takes four items of the shared dimension
        add_8(sum[0], sum[1], a.v[0], b.v[0]);
        add_8(sum[2], sum[3], a.v[1], b.v[0]);
        add_8(sum[0], sum[1], a.v[2], b.v[1]);
        add_8(sum[2], sum[3], a.v[3], b.v[1]);
#else
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
            : "d"(a.v[0]), "d"(a.v[1]), "d"(a.v[2]), "d"(a.v[3]), "d"(b.v[0]), "d"(b.v[1]));
#endif
    }
};
#endif

template <int M, int N>
struct Tensor {
    template <typename S>
    using Copies = Slices<S>;
    typedef Fragment F;
    static constexpr int ITEMS = M * N / 32, ACROSS = N / 8;
    static constexpr int WIDE = 8 * LANE_ITEMS;  // columns of which a lane reads one pack
    static_assert(M % 16 == 0 && N % WIDE == 0, "fragments");
    // lanes (l / 4, l % 4) read different banks
    static constexpr int a_stride(int depth) { return depth % 16 == 0 ? depth + 8 : depth; }
    static constexpr int b_stride(int columns) { return columns + LANE_ITEMS; }
    struct alignas(2 * sizeof(T)) Pair {
        T v[2];
    };
    T sum[ITEMS];

    static INLINE int x() { return threadIdx.x % 4; }
    static INLINE int y() { return threadIdx.x % 32 / 4; }
    static INLINE void publish() {}
    INLINE void clear() {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) sum[i] = T(0);
    }
    template <int DEPTH, int A_STRIDE, int B_STRIDE>
    INLINE void multiply(const T* a, const T* b) {
        static_assert(DEPTH % (8 * F::CHUNKS) == 0, "fragments");
        a += y() * A_STRIDE + 2 * x();
        b += 2 * x() * B_STRIDE + y() * LANE_ITEMS;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8 * F::CHUNKS) {
            F::Left left[M / 16];
#pragma unroll
            for (int i = 0; i < M / 16; ++i)
#pragma unroll
                for (int half = 0; half < 2 * F::CHUNKS; ++half) {
                    const Pair found =
                        *(const Pair*)(a + (16 * i + half % 2 * 8) * A_STRIDE + k + half / 2 * 8);
                    const int place = half / 2 * 4 + half % 2;
                    left[i].set(place, found.v[0]);
                    left[i].set(place + 2, found.v[1]);
                }
#pragma unroll
            for (int wide = 0; wide < N / WIDE; ++wide) {
                Pack found[2 * F::CHUNKS];
#pragma unroll
                for (int c = 0; c < 2 * F::CHUNKS; ++c)
                    found[c] = *(const Pack*)(b + (k + c / 2 * 8 + c % 2) * B_STRIDE + wide * WIDE);
#pragma unroll
                for (int v = 0; v < LANE_ITEMS; ++v) {
                    F::Right right;
#pragma unroll
                    for (int c = 0; c < 2 * F::CHUNKS; ++c) right.set(c, found[c].v[v]);
#pragma unroll
                    for (int i = 0; i < M / 16; ++i)
                        F::add(sum + 4 * (i * ACROSS + wide * LANE_ITEMS + v), left[i], right);
                }
            }
        }
    }
    // Calls row(r), then put(column, items) for each pack of that row.
    template <typename Row, typename Put>
    INLINE void each(const Row& row, const Put& put) const {
#pragma unroll
        for (int i = 0; i < M / 16; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                row(16 * i + 8 * half + y());
#pragma unroll
                for (int wide = 0; wide < N / WIDE; ++wide)
#pragma unroll
                    for (int c = 0; c < 2; ++c) {
                        Pack out;
#pragma unroll
                        for (int v = 0; v < LANE_ITEMS; ++v)
                            out.v[v] = sum[4 * (i * ACROSS + wide * LANE_ITEMS + v) + 2 * half + c];
                        put(wide * WIDE + (2 * x() + c) * LANE_ITEMS, out);
                    }
            }
    }
};
#endif
