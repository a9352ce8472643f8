// mdcg VERSION, problem 21216b3c1fd07751, kernel contraction_forward
// CudaContractionPlan sm_90: 32 threads, 0 blocks per multiprocessor
// arg: n_rows, x, w, y, n_species, out
typedef float T;
#define CHANNELS 8
#define COEFFICIENTS 1
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
extern "C" __global__ void __launch_bounds__(32) contraction_forward(const Arguments p) {
    const int lane = threadIdx.x % 32;
    const Long job = Long(blockIdx.x) * 1 + threadIdx.x / 32;
    const Long n = job / 1;
    const int u = int(job % 1) * 32 + lane;
    if (n >= p.n_rows) return;
    const int species = only_species(p.y + n * p.n_species, int(p.n_species), lane);
    if (u >= 8) return;
    const T* const row_x = p.x + (n * 8 + u) * 3;
    const T x0 = __ldg(row_x + 0);
    const T x1 = __ldg(row_x + 1);
    const T x2 = __ldg(row_x + 2);
    T mixed_c[1];
    const T* c = p.w + Long(species) * 8 + u;
    int c_stride = 8;
    if (species < 0) {
        mix(p.y + n * p.n_species, int(p.n_species), p.w + u, mixed_c);
        c = mixed_c;
        c_stride = 1;
    }
    T o0 = 0;
    {
        const T c0 = c[0 * c_stride];
        const T t0 = x0 * x0;
        const T t1 = x1 * x1;
        const T t2 = x2 * x2;
        const T t3 = t0 + t1 + t2;
        o0 += c0 * t3;
    }
    p.out[n * 8 + 0 + u * 1] = o0;
}
