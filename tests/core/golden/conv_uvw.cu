// mdcg VERSION, problem f74b48fe16318d7b, conv_forward

// CudaPlan sm_90: forward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, depth=4, spill_bytes=0), backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=168, depth=4, spill_bytes=24), double_backward CudaTile(channels=1, components=80, batch=16, warps=2, registers=0, depth=2, spill_bytes=0), uvw CudaUvwTile(warps=4, words=24, scratch=12288, registers=80, gradient_registers=128, double_registers=168, spill_bytes=128)

typedef double T;

#define MDCG_VECTOR_ATOMICS 0

// (cuda_prelude.cuh)
// (warp_sums.cuh)


// (uvw.cuh)


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
    if (i >= p.n_rows * 4) return;
    const Long r = i / 4;
    const int c = int(i - r * 4) * 1;
    if (c >= 0 && c < 4) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        p.target[i] = u < 3 ? p.source[r * 3 + 0 + u * 1 + a] : T(0);
    }
}

extern "C" __global__ void __launch_bounds__(256) mdcg_unpack_in1(const RowCopy p) {
    const Long i = Long(blockIdx.x) * 256 + threadIdx.x;
    if (i >= p.n_rows * 4) return;
    const Long r = i / 4;
    const int c = int(i - r * 4) * 1;
    if (c >= 0 && c < 4) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        if (u < 3) p.target[r * 3 + 0 + u * 1 + a] = p.source[i];
    }
}

extern "C" __global__ void __launch_bounds__(256) mdcg_sum_in1(const RowSum p) {
    const Long i = Long(blockIdx.x) * 256 + threadIdx.x;
    if (i >= p.n_rows * 2) return;
    const Long r = i / 2;
    const int c = int(i - r * 2) * 2;
    Vec<2> total = {};
    const int end = p.row_ptr[r + 1];
#pragma unroll 4
    for (int k = p.row_ptr[r]; k < end; ++k) total += load_stream(p.source + Long(k) * 4 + c, Vec<2>());
    if (c >= 0 && c < 4) {
        const int a = (c - 0) / 4, u = (c - 0) % 4;
        store_some<2, 1>(p.target + r * 3 + 0 + u * 1 + a, total, 3 - u);
    }
}

// 3 rows into 5x0e
struct Stack0_0 {
    static constexpr int ROWS = 3, MUL = 5, C = 1, N = 1, G = 5, PANEL = 1, BATCH = 1, CHANNEL = 1, COMPONENT = 1;
    static constexpr bool DIRECT = false;
    MDCG_INLINE int offset(int r) {
        return 0 + r * 5;
    }
};

// 3x0e, channels 0 to 3, 1 uvw paths
MDCG_INLINE void left0_0(const Arguments& p, T* mine, Long e, Long s, Long row, int lane) {
    {
        const T y0 = __ldg(p.y + e * 1 + 0);
        const T m0_0 = y0;
        for (int u = 0 + lane; u < 3; u += 32) {
            const T x0 = __ldg(p.x + s * 3 + 0 + u * 1);
            {
                const T m0 = m0_0;
                T left_w0 = m0 * x0;
                mine[0 + u * 1] = left_w0;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(128, 6) conv_forward_0(const Arguments p) {
    extern __shared__ Quad shared_memory[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T* const mine = (T*)(shared_memory + warp * 4);
    for (int i = lane; i < 5; i += 32) mine[3 + i] = 0;
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
        stream<Stack0_0, SUM_W>(p.w + e * 15, nullptr, nullptr, Vectors{mine + 0, nullptr, nullptr, nullptr, nullptr, mine + 3}, lane);
        __syncwarp();
        __syncwarp();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 5; i += 128) {
        T sum = 0;
        for (int w = 0; w < 4; ++w) sum += ((const T*)shared_memory)[w * 8 + 3 + i];
        p.out[row * 5 + i] = sum;
    }
}
