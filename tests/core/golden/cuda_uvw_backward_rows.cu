// mdcg VERSION, problem 29458da06e443329, tp_backward_wants_xyw

// CudaPlan sm_90: forward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, rows=1, depth=4, spill_bytes=0), backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=168, rows=1, depth=4, spill_bytes=24), double_backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, rows=1, depth=2, spill_bytes=0), uvw CudaUvwTile(warps=4, words=24, scratch=12288, registers=80, gradient_registers=128, double_registers=168, spill_bytes=128)

typedef double T;

#define MDCG_VECTOR_ATOMICS 0

// (cuda_prelude.cuh)


// (cuda_uvw.cuh)


struct Arguments {
    Long n_rows;
    const T* __restrict__ x;
    const T* __restrict__ y;
    const T* __restrict__ w;
    const T* __restrict__ g;
    T* __restrict__ dx;
    T* __restrict__ dy;
    T* __restrict__ dw;
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
MDCG_INLINE void left0_0(const Arguments& p, T* mine, Long e, Long s, Long row, Long to, int lane) {
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

// 3x1o, channels 0 to 3, 1 uvw paths
MDCG_INLINE void pull0_0(const Arguments& p, T* mine, Long e, Long s, Long row, Long to, int lane) {
    for (int v = 0; v < 2; ++v) {
        const T y0 = __ldg(p.y + e * 6 + v * 3 + 0);
        const T y1 = __ldg(p.y + e * 6 + v * 3 + 1);
        const T y2 = __ldg(p.y + e * 6 + v * 3 + 2);
        const T m0_0 = T(0x1.279a74590331cp-1) * y0;
        const T m0_1 = T(0x1.279a74590331cp-1) * y1;
        const T m0_2 = T(0x1.279a74590331cp-1) * y2;
        T dy0[4] = {};
        for (int u = 0 + lane; u < 3; u += 32) {
            const T x0 = __ldg(p.x + s * 9 + 0 + u * 3);
            const T x1 = __ldg(p.x + s * 9 + 1 + u * 3);
            const T x2 = __ldg(p.x + s * 9 + 2 + u * 3);
            T dx0 = 0;
            T dx1 = 0;
            T dx2 = 0;
            {
                const T m0 = m0_0;
                const T m1 = m0_1;
                const T m2 = m0_2;
                T p0 = 0;
                T p1 = 0;
                T p2 = 0;
                const T q0 = mine[6 + u * 2 + v * 1];
                dx0 += m0 * q0;
                dx1 += m1 * q0;
                dx2 += m2 * q0;
                p0 = x0 * q0;
                p1 = x1 * q0;
                p2 = x2 * q0;
                dy0[0] += T(0x1.279a74590331cp-1) * p0;
                dy0[1] += T(0x1.279a74590331cp-1) * p1;
                dy0[2] += T(0x1.279a74590331cp-1) * p2;
            }
            mine[12 + 0 + u * 3] += dx0;
            mine[12 + 1 + u * 3] += dx1;
            mine[12 + 2 + u * 3] += dx2;
        }
        const T sum0 = reduce(dy0, lane);
        if (lane % 8 == 0 && lane < 24) mine[21 + 0 + lane / 8 + v * 3] += sum0;
    }
}

// 3x1o, channels 0 to 3, 1 uvu paths
MDCG_INLINE void pull1_0(const Arguments& p, T* mine, Long e, Long s, Long row, Long to, int lane) {
    for (int v = 0; v < 2; ++v) {
        const T y0 = __ldg(p.y + e * 6 + v * 3 + 0);
        const T y1 = __ldg(p.y + e * 6 + v * 3 + 1);
        const T y2 = __ldg(p.y + e * 6 + v * 3 + 2);
        const T m6_0 = T(0x1.a20bd700c2c3fp-2) * y2;
        const T m6_1 = -T(0x1.a20bd700c2c3fp-2) * y1;
        const T m6_2 = T(0x1.a20bd700c2c3fp-2) * y0;
        T dy0[4] = {};
        for (int u = 0 + lane; u < 3; u += 32) {
            const T x0 = __ldg(p.x + s * 9 + 0 + u * 3);
            const T x1 = __ldg(p.x + s * 9 + 1 + u * 3);
            const T x2 = __ldg(p.x + s * 9 + 2 + u * 3);
            T dx0 = 0;
            T dx1 = 0;
            T dx2 = 0;
            {
                const T m0 = m6_0;
                const T m1 = m6_1;
                const T m2 = m6_2;
                T p0 = 0;
                T p1 = 0;
                T p2 = 0;
                const T wv = __ldg(p.w + e * 36 + 30 + u * 2 + v);
                const T g0 = __ldg(p.g + row * 14 + 5 + u * 3);
                const T g1 = __ldg(p.g + row * 14 + 6 + u * 3);
                const T g2 = __ldg(p.g + row * 14 + 7 + u * 3);
                T s0 = wv * x0;
                T s1 = wv * x1;
                T s2 = wv * x2;
                T q0 = -m0 * g1 - m1 * g2;
                T d0 = wv * q0;
                T q1 = m0 * g0 - m2 * g2;
                T d1 = wv * q1;
                T q2 = m1 * g0 + m2 * g1;
                T d2 = wv * q2;
                T dwv = x0 * q0 + x1 * q1 + x2 * q2;
                p0 = p0 + s1 * g0 - s0 * g1;
                p1 = p1 + s2 * g0 - s0 * g2;
                p2 = p2 + s2 * g1 - s1 * g2;
                dx0 += d0;
                dx1 += d1;
                dx2 += d2;
                p.dw[e * 36 + 30 + u * 2 + v] = dwv;
                dy0[0] += T(0x1.a20bd700c2c3fp-2) * p2;
                dy0[1] += -T(0x1.a20bd700c2c3fp-2) * p1;
                dy0[2] += T(0x1.a20bd700c2c3fp-2) * p0;
            }
            mine[12 + 0 + u * 3] += dx0;
            mine[12 + 1 + u * 3] += dx1;
            mine[12 + 2 + u * 3] += dx2;
        }
        const T sum0 = reduce(dy0, lane);
        if (lane % 8 == 0 && lane < 24) mine[21 + 0 + lane / 8 + v * 3] += sum0;
    }
}

extern "C" __global__ void __launch_bounds__(128, 4) mdcg_run_0(const Arguments p) {
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const mine = (T*)(shared_memory + warp * 14);
    const Long first = Long(blockIdx.x) * 4, row = first + warp;
    const Long e = row, s = row;
    if (row >= p.n_rows) return;
    const Long to = s;
    for (int i = lane; i < 9; i += 32) mine[12 + i] = 0;
    for (int i = lane; i < 6; i += 32) mine[21 + i] = 0;
    __syncwarp();
    left0_0(p, mine, e, s, row, to, lane);
    __syncwarp();
    stream<Stack0_0, GRAD_W | PULL_W>(p.w + e * 36, nullptr, p.dw + e * 36, Vectors{mine + 0, nullptr, mine + 6, nullptr, p.g + row * 14 + 0, nullptr}, lane);
    __syncwarp();
    pull0_0(p, mine, e, s, row, to, lane);
    __syncwarp();
    pull1_0(p, mine, e, s, row, to, lane);
    __syncwarp();
    for (int i = lane; i < 9; i += 32) (p.dx + to * 9 + i)[0] = mine[12 + i];
    for (int i = lane; i < 6; i += 32) (p.dy + e * 6 + i)[0] = mine[21 + i];
    __syncwarp();
}
