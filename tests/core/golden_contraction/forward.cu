// mdcg VERSION, problem c0b92e6438146d9e, kernel contraction_forward
// CudaContractionPlan sm_90: 32 threads, 0 blocks per multiprocessor
// arg: n_rows, x, w, y, n_species, out
typedef float T;
#define CHANNELS 8
#define COEFFICIENTS 3
typedef long long Long;

struct alignas(16) Quad {
    T v[16 / sizeof(T)];
};

// Number of the species that a node is of, or -1 for a mixture; all lanes of a warp together.
static __device__ __forceinline__ int only_species(const T* y, int n_species, int lane) {
    int found = 0, count = 0;
    bool mixed = false;
    for (int s = lane; s < n_species; s += 32) {
        const T value = __ldg(y + s);
        if (value == T(0)) continue;
        found = s;
        mixed |= ++count > 1 || value != T(1);
    }
    const unsigned owners = __ballot_sync(0xffffffffu, count > 0);
    if (__any_sync(0xffffffffu, mixed) || __popc(owners) != 1) return -1;
    return __shfl_sync(0xffffffffu, found, __ffs(owners) - 1);
}

// Coefficients of one channel of a node of several species.
static __device__ __noinline__ void mix(const T* y, int n_species, const T* w, T* sum) {
    for (int r = 0; r < COEFFICIENTS; ++r) sum[r] = 0;
    for (int s = 0; s < n_species; ++s) {
        const T value = y[s];
        if (value == T(0)) continue;
        for (int r = 0; r < COEFFICIENTS; ++r)
            sum[r] += value * w[(Long(s) * COEFFICIENTS + r) * CHANNELS];
    }
}

struct Arguments {
    Long n_rows;
    const T* __restrict__ x;
    const T* __restrict__ w;
    const T* __restrict__ y;
    Long n_species;
    T* __restrict__ out;
};
extern "C" __global__ void __launch_bounds__(32) mdcg_run(const Arguments p) {
    const int lane = threadIdx.x % 32;
    const Long job = Long(blockIdx.x) * 1 + threadIdx.x / 32;
    const Long n = job / 1;
    const int u = int(job % 1) * 32 + lane;
    if (n >= p.n_rows) return;
    const int species = only_species(p.y + n * p.n_species, int(p.n_species), lane);
    if (u >= 8) return;
    const T* const row_x = p.x + (n * 8 + u) * 4;
    const Quad quad_x0 = ((const Quad*)row_x)[0];
    const T x0 = quad_x0.v[0];
    const T x1 = quad_x0.v[1];
    const T x2 = quad_x0.v[2];
    const T x3 = quad_x0.v[3];
    T mixed_c[3];
    const T* c = p.w + Long(species) * 24 + u;
    int c_stride = 8;
    if (species < 0) {
        mix(p.y + n * p.n_species, int(p.n_species), p.w + u, mixed_c);
        c = mixed_c;
        c_stride = 1;
    }
    T o0 = 0;
    T o1 = 0;
    T o2 = 0;
    T o3 = 0;
    {
        const T c1 = c[1 * c_stride];
        const T c2 = c[2 * c_stride];
        const T t0 = x0 * x1;
        const T t1 = x0 * x2;
        const T t2 = x0 * x3;
        const T t3 = T(0x1.0000000000000p-1) * t0;
        const T t4 = T(0x1.0000000000000p-1) * t1;
        const T t5 = T(0x1.0000000000000p-1) * t2;
        const T t6 = T(0x1.0000000000000p+1) * t0;
        const T t7 = T(0x1.0000000000000p+1) * t1;
        const T t8 = T(0x1.0000000000000p+1) * t2;
        const T t9 = t3 * x1 + t4 * x2 + t5 * x3;
        o1 += c2 * t6;
        o2 += c2 * t7;
        o3 += c2 * t8;
        o0 += c1 * t9;
    }
    {
        const T c0 = c[0 * c_stride];
        const T t0 = x1 * x1;
        const T t1 = x2 * x2;
        const T t2 = x3 * x3;
        const T t3 = t0 + t1 + t2;
        o0 += c0 * t3;
    }
    p.out[n * 32 + 0 + u * 1] = o0;
    p.out[n * 32 + 8 + u * 3] = o1;
    p.out[n * 32 + 9 + u * 3] = o2;
    p.out[n * 32 + 10 + u * 3] = o3;
}
