R"CUDA(
// L_MAX is defined: -1 where only lengths matter. Rows of harmonics have WIDTH items; blocks of
// THREADS slots pass them through shared memory, so that lanes read and write neighbours.
constexpr int WIDTH = (L_MAX + 1) * (L_MAX + 1), ROW = WIDTH | 1;
constexpr int PER_ROW = WIDTH > 0 ? WIDTH : 1;

struct HarmonicsArguments {
    Long first, num_slots;  // of the chunk
    const T* unit;          // [all slots][3], zeros: a dead slot
    const double* length;   // [all slots]
    const T* factors;       // [WIDTH]
    T* harmonics;           // [num_slots][WIDTH]
    const T* d_harmonics;
    const double* d_length;  // [num_slots]
    T* edge_gradient;        // [all slots][3]
    double sign;             // of the unit vector against pos[receiver] - pos[sender]
};

// Y_{l,+-m} = factor * P_l^(m)(y) * {Re, Im}(z + i x)^m, P^(m) the m-th derivative of the Legendre
// polynomial: e3nn's basis, whose axis is y.
extern "C" __global__ void __launch_bounds__(THREADS) harmonics(const HarmonicsArguments p) {
    __shared__ T rows[THREADS * ROW];
    const Long begin = Long(blockIdx.x) * THREADS;
    const int count = int(p.num_slots - begin < THREADS ? p.num_slots - begin : THREADS);
    if (int(threadIdx.x) < count) {
        const T* const u = p.unit + 3 * (p.first + begin + threadIdx.x);
        const T x = u[0], y = u[1], z = u[2];
        T* const row = rows + threadIdx.x * ROW;
        const bool dead = x == T(0) && y == T(0) && z == T(0);
        T re = dead ? T(0) : T(1), im = 0;
        T diagonal = 1;  // (2m-1)!!
#pragma unroll
        for (int m = 0; m <= L_MAX; ++m) {
            T before = 0, legendre = diagonal;
#pragma unroll
            for (int l = m; l <= L_MAX; ++l) {
                const int i = l * l + l;
                row[i + m] = legendre * p.factors[i + m] * re;
                if (m > 0) row[i - m] = legendre * p.factors[i - m] * im;
                const T next =
                    (y * legendre * T(2 * l + 1) - before * T(l + m)) * (T(1) / T(l + 1 - m));
                before = legendre;
                legendre = next;
            }
            const T re_next = re * z - im * x;
            im = im * z + re * x;
            re = re_next;
            diagonal = diagonal * T(2 * m + 1);
        }
    }
    __syncthreads();
    T* const out = p.harmonics + begin * WIDTH;
    for (int i = threadIdx.x; i < count * WIDTH; i += THREADS)
        out[i] = rows[i / PER_ROW * ROW + i % PER_ROW];
}

// sum_lm d[lm] dY_lm/d(unit); its part along the unit vector is without meaning.
INLINE void harmonics_gradient(const T* factors, const T* u, const T* d, double* gradient) {
    const T x = u[0], y = u[1], z = u[2];
    T re = 1, im = 0;                // (z + i x)^m
    T re_before = 0, im_before = 0;  // (z + i x)^(m-1)
    T diagonal = 1;
    T gx = 0, gy = 0, gz = 0;
#pragma unroll
    for (int m = 0; m <= L_MAX; ++m) {
        T before = 0, legendre = diagonal;
        T real = 0, imaginary = 0, axis_real = 0, axis_imaginary = 0;
#pragma unroll
        for (int l = m; l <= L_MAX; ++l) {
            const int i = l * l + l;
            if (m > 0) {
                real += d[i + m] * factors[i + m] * legendre;
                imaginary += d[i - m] * factors[i - m] * legendre;
                // the derivative of P^(m-1) is P^(m)
                axis_real += d[i + m - 1] * factors[i + m - 1] * legendre;
                if (m > 1) axis_imaginary += d[i - m + 1] * factors[i - m + 1] * legendre;
            }
            const T next =
                (y * legendre * T(2 * l + 1) - before * T(l + m)) * (T(1) / T(l + 1 - m));
            before = legendre;
            legendre = next;
        }
        gz += (real * re_before + imaginary * im_before) * T(m);
        gx += (imaginary * re_before - real * im_before) * T(m);
        gy += axis_real * re_before + axis_imaginary * im_before;
        re_before = re;
        im_before = im;
        re = re_before * z - im_before * x;
        im = im_before * z + re_before * x;
        diagonal = diagonal * T(2 * m + 1);
    }
    gradient[0] = double(gx);
    gradient[1] = double(gy);
    gradient[2] = double(gz);
}

// Gradients of directions and lengths, added to those of vectors.
extern "C" __global__ void __launch_bounds__(THREADS) to_vectors(const HarmonicsArguments p) {
    const Long begin = Long(blockIdx.x) * THREADS;
    const int count = int(p.num_slots - begin < THREADS ? p.num_slots - begin : THREADS);
    __shared__ T rows[THREADS * ROW];
    if (p.d_harmonics) {
        const T* const d = p.d_harmonics + begin * WIDTH;
        for (int i = threadIdx.x; i < count * WIDTH; i += THREADS)
            rows[i / PER_ROW * ROW + i % PER_ROW] = d[i];
    }
    __syncthreads();
    if (int(threadIdx.x) >= count) return;
    const Long slot = p.first + begin + threadIdx.x;
    const T* const u = p.unit + 3 * slot;
    if (u[0] == T(0) && u[1] == T(0) && u[2] == T(0)) return;
    double along = p.d_length[begin + threadIdx.x], d[3] = {0, 0, 0}, inverse = 0;
    if (p.d_harmonics) {
        harmonics_gradient(p.factors, u, rows + threadIdx.x * ROW, d);
        inverse = 1.0 / p.length[slot];
        along -= (d[0] * u[0] + d[1] * u[1] + d[2] * u[2]) * inverse;
    }
    T* const to = p.edge_gradient + 3 * slot;
#pragma unroll
    for (int k = 0; k < 3; ++k) to[k] += T(p.sign * (along * u[k] + d[k] * inverse));
}
)CUDA"
