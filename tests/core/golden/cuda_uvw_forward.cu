// mdcg VERSION, problem 29458da06e443329, conv_forward

// CudaPlan sm_90: forward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, rows=1, depth=4, spill_bytes=0), backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=168, rows=1, depth=4, spill_bytes=24), double_backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, rows=1, depth=2, spill_bytes=0), uvw CudaUvwTile(warps=4, words=24, scratch=12288, registers=80, gradient_registers=128, double_registers=168, spill_bytes=128)

typedef double T;

#define MDCG_VECTOR_ATOMICS 0

// (cuda_prelude.cuh)


// (cuda_uvw.cuh)


struct Arguments {
    const int* __restrict__ order;
    const int* __restrict__ sender;
    const int* __restrict__ row_ptr;
    Long n_rows;
    const T* __restrict__ x;
    const T* __restrict__ y;
    const T* __restrict__ w;
    T* __restrict__ out;
};

struct RowCopy {
    const T* source;
    T* target;
    Long n_rows;
};
struct RowSum {
    const T* source;
    T* target;
    Long n_rows;
    const int* row_ptr;
};

extern "C" __global__ void __launch_bounds__(256) mdcg_pack_in1(const RowCopy p) {
    const Long i = Long(blockIdx.x) * 256 + threadIdx.x;
    if (i >= p.n_rows * 12) return;
    const Long r = i / 12;
    const int c = int(i - r * 12) * 1;
    if (c >= 0 && c < 12) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        p.target[i] = u < 3 ? p.source[r * 9 + 0 + u * 3 + a] : T(0);
    }
}

extern "C" __global__ void __launch_bounds__(256) mdcg_unpack_in1(const RowCopy p) {
    const Long i = Long(blockIdx.x) * 256 + threadIdx.x;
    if (i >= p.n_rows * 12) return;
    const Long r = i / 12;
    const int c = int(i - r * 12) * 1;
    if (c >= 0 && c < 12) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        if (u < 3) p.target[r * 9 + 0 + u * 3 + a] = p.source[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) mdcg_sum_in1(const RowSum p) {
    const Long i = Long(blockIdx.x) * 256 + threadIdx.x;
    if (i >= p.n_rows * 6) return;
    const Long r = i / 6;
    const int c = int(i - r * 6) * 2;
    Vec<2> total = {};
    const int end = p.row_ptr[r + 1];
#pragma unroll 4
    for (int k = p.row_ptr[r]; k < end; ++k) total += load_stream(p.source + Long(k) * 12 + c, Vec<2>());
    if (c >= 0 && c < 12) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        store_some<2, 3>(p.target + r * 9 + 0 + u * 3 + a, total, 3 - u);
    }
}

// 6 rows into 5x0e
struct Stack0_0 {
    static constexpr int ROWS = 6, MUL = 5, C = 1, N = 1, G = 5, PANEL = 1, BATCH = 1, CHANNEL = 1, COMPONENT = 1;
    static constexpr bool DIRECT = false;
    MDCG_INLINE int offset(int r) {
        return 0 + r * 5;
    }
};

// 3x1o, channels 0 to 3, 1 uvw paths
MDCG_INLINE void left0_0(const Arguments& p, T* mine, Long e, Long s, Long row, int lane) {
    for (int v = 0; v < 2; ++v) {
        const T y0 = __ldg(p.y + e * 6 + v * 3 + 0);
        const T y1 = __ldg(p.y + e * 6 + v * 3 + 1);
        const T y2 = __ldg(p.y + e * 6 + v * 3 + 2);
        const T m0_0 = T(0x1.279a74590331cp-1) * y0;
        const T m0_1 = T(0x1.279a74590331cp-1) * y1;
        const T m0_2 = T(0x1.279a74590331cp-1) * y2;
        for (int u = 0 + lane; u < 3; u += 32) {
            const T x0 = __ldg(p.x + s * 9 + 0 + u * 3);
            const T x1 = __ldg(p.x + s * 9 + 1 + u * 3);
            const T x2 = __ldg(p.x + s * 9 + 2 + u * 3);
            {
                const T m0 = m0_0;
                const T m1 = m0_1;
                const T m2 = m0_2;
                T left_w0 = m0 * x0 + m1 * x1 + m2 * x2;
                mine[0 + u * 2 + v * 1] = left_w0;
            }
        }
    }
}

// 3x1o, channels 0 to 3, 1 uvu paths
MDCG_INLINE void pull1_0(const Arguments& p, T* mine, Long e, Long s, Long row, int lane) {
    for (int v = 0; v < 2; ++v) {
        const T y0 = __ldg(p.y + e * 6 + v * 3 + 0);
        const T y1 = __ldg(p.y + e * 6 + v * 3 + 1);
        const T y2 = __ldg(p.y + e * 6 + v * 3 + 2);
        const T m6_0 = T(0x1.a20bd700c2c3fp-2) * y2;
        const T m6_1 = -T(0x1.a20bd700c2c3fp-2) * y1;
        const T m6_2 = T(0x1.a20bd700c2c3fp-2) * y0;
        for (int u = 0 + lane; u < 3; u += 32) {
            const T x0 = __ldg(p.x + s * 9 + 0 + u * 3);
            const T x1 = __ldg(p.x + s * 9 + 1 + u * 3);
            const T x2 = __ldg(p.x + s * 9 + 2 + u * 3);
            {
                const T m0 = m6_0;
                const T m1 = m6_1;
                const T m2 = m6_2;
                const T wv = __ldg(p.w + e * 36 + 30 + u * 2 + v);
                T s0 = wv * x0;
                T s1 = wv * x1;
                T s2 = wv * x2;
                T o0 = m0 * s1 + m1 * s2;
                mine[6 + 5 + u * 3] += o0;
                T o1 = -m0 * s0 + m2 * s2;
                mine[6 + 6 + u * 3] += o1;
                T o2 = -m1 * s0 - m2 * s1;
                mine[6 + 7 + u * 3] += o2;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 6) mdcg_run_0(const Arguments p) {
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const mine = (T*)(shared_memory + warp * 10);
    for (int i = lane; i < 14; i += 32) mine[6 + i] = 0;
    const Long row = blockIdx.x;
    const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];
    int next_e = 0, next_s = 0;
    const auto fetch = [&](int k) {
        if (k < end) next_e = p.order[k], next_s = p.sender[k];
    };
    fetch(begin + warp);
    for (int k = begin + warp; k < end; k += 4) {
        const Long e = next_e, s = next_s;
        fetch(k + 4);
        __syncwarp();
        left0_0(p, mine, e, s, row, lane);
        __syncwarp();
        stream<Stack0_0, SUM_W>(p.w + e * 36, nullptr, nullptr, Vectors{mine + 0, nullptr, nullptr, nullptr, nullptr, mine + 6}, lane);
        __syncwarp();
        pull1_0(p, mine, e, s, row, lane);
        __syncwarp();
        __syncwarp();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 14; i += 128) {
        T sum = 0;
        for (int w = 0; w < 4; ++w) sum += ((const T*)shared_memory)[w * 20 + 6 + i];
        p.out[row * 14 + i] = sum;
    }
}
