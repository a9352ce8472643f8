// The energy of Gaussian charges: sums over waves of a cell, or over pairs of an open system.
#include "kernels/cutoff.cuh"
#include "kernels/ewald.hpp"

// Cosines and sines of 2 pi n s for a tile of atoms: rows of n = 0 .. bound of each direction.
struct Tables {
    double *cosine, *sine;  // [rows][EWALD_ROW]
    int first[3];           // row of n = 0 of each direction
};

INLINE int rows_of(const EwaldArguments<T>& p, int direction) {
    // threads read up to THREAD_PAIRS - 1 rows beyond the last pair of a column
    return p.bounds[direction] + 1 + (direction == 2 ? THREAD_PAIRS : 0);
}

// The fraction of the cell of an atom, in 2^-64: products with integers leave out whole turns.
INLINE unsigned long long phase(const EwaldArguments<T>& p, Long node, int direction) {
    const double* at = p.positions + 3 * node;
    const double* inverse = p.cell->inverse + direction;
    const double s = at[0] * inverse[0] + at[1] * inverse[3] + at[2] * inverse[6];
    const double fraction = s - floor(s);  // may be rounded to 1
    return fraction < 1 ? (unsigned long long)(fraction * 18446744073709551616.0) : 0ull;
}

INLINE Tables fill_tables(const EwaldArguments<T>& p, Long tile, double* memory) {
    Tables t;
    int rows = 0;
    for (int d = 0; d < 3; ++d) {
        t.first[d] = rows;
        rows += rows_of(p, d);
    }
    t.cosine = memory;
    t.sine = memory + rows * EWALD_ROW;
    for (int d = 0; d < 3; ++d)
        for (int i = threadIdx.x; i < rows_of(p, d) * EWALD_TILE; i += EWALD_THREADS) {
            const int n = i / EWALD_TILE, atom = i % EWALD_TILE;
            const Long node = tile * EWALD_TILE + atom;
            const int to = (t.first[d] + n) * EWALD_ROW + atom;
            double sine = 0, cosine = 0;
            if (node < p.num_local) {
                const Long turned = (Long)((unsigned long long)(n)*phase(p, node, d));
                sincos(double(turned) * (6.283185307179586477 / 18446744073709551616.0), &sine,
                       &cosine);
            }
            t.cosine[to] = cosine;
            t.sine[to] = sine;
        }
    return t;
}

struct Complex {
    double re, im;
};

// exp(2 pi i (n1 s1 + n2 s2)); n1 is not negative.
INLINE Complex column_wave(const Tables& t, int n1, int n2, int atom) {
    const int first = (t.first[0] + n1) * EWALD_ROW + atom;
    const int second = (t.first[1] + (n2 < 0 ? -n2 : n2)) * EWALD_ROW + atom;
    const double c1 = t.cosine[first], s1 = t.sine[first], c2 = t.cosine[second];
    const double s2 = n2 < 0 ? -t.sine[second] : t.sine[second];
    return {c1 * c2 - s1 * s2, c1 * s2 + s1 * c2};
}

INLINE double charge_of(const EwaldArguments<T>& p, Long node) {
    return node < p.num_local ? double(p.charges[node * p.width]) : 0.0;
}

// The sum of absolute charges is divided by this, so that it fits for any number of atoms.
constexpr double CHARGE_SHARE = 1048576.0;

INLINE void add_units(Long* to, double value) {
    atomicAdd((unsigned long long*)to, (unsigned long long)(llrint(value * CHARGE_UNITS)));
}

// With P = q exp(2 pi i (n1 s1 + n2 s2)), cosine c and sine s of m s3, adds to the sums of a pair
// the sums over atoms of re(P) c, im(P) s, re(P) s and im(P) c. A thread has some pairs, and a
// block a chunk of the atoms.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS) ewald_sums(const EwaldArguments<T> p) {
    extern __shared__ double memory[];
    __shared__ double charges[EWALD_TILE];
    const Long thread = Long(blockIdx.x / p.chunks) * EWALD_THREADS + threadIdx.x;
    const Long tiles = (p.num_local + EWALD_TILE - 1) / EWALD_TILE;
    const Long chunk = blockIdx.x % p.chunks;
    const bool mine = thread < p.num_threads;
    const WavePairs own = mine ? p.pairs[thread] : WavePairs{0, 0, 0, 0, 0};
    double found[THREAD_PAIRS][4] = {};
    double total = 0;
    for (Long tile = chunk * tiles / p.chunks; tile < (chunk + 1) * tiles / p.chunks; ++tile) {
        __syncthreads();
        const Tables t = fill_tables(p, tile, memory);
        if (threadIdx.x < EWALD_TILE)
            charges[threadIdx.x] = charge_of(p, tile * EWALD_TILE + threadIdx.x);
        __syncthreads();
        if (thread < EWALD_TILE) total += fmin(fabs(charges[thread]), MAX_CHARGE);
        for (int atom = 0; mine && atom < EWALD_TILE; ++atom) {
            Complex wave = column_wave(t, own.n1, own.n2, atom);
            wave.re *= charges[atom];
            wave.im *= charges[atom];
#pragma unroll
            for (int i = 0; i < THREAD_PAIRS; ++i) {
                const int row = (t.first[2] + own.m + i * own.step) * EWALD_ROW + atom;
                const double c = t.cosine[row], s = t.sine[row];
                found[i][0] += wave.re * c;
                found[i][1] += wave.im * s;
                found[i][2] += wave.re * s;
                found[i][3] += wave.im * c;
            }
        }
    }
    for (int i = 0; mine && i < THREAD_PAIRS; ++i)
        for (int k = 0; k < 4; ++k)
            add_units(p.sums + 4 * (own.pair + i * own.step) + k, found[i][k]);
    if (thread < EWALD_TILE) add_units(p.sums + 4 * p.num_pairs, total / CHARGE_SHARE);
}

// S of the waves n3 = m (sign 1) and -m (sign -1) of a pair.
INLINE Complex amplitude(const Long* s, double sign) {
    return {(double(s[0]) - sign * double(s[1])) / CHARGE_UNITS,
            (sign * double(s[2]) + double(s[3])) / CHARGE_UNITS};
}

// Adds up nine numbers of all threads of a block in a fixed order, and stores them.
INLINE void store_virial(const double (&values)[9], double* to) {
    __shared__ double parts[EWALD_WARPS][9];
    for (int i = 0; i < 9; ++i) {
        const double sum = warp_sum(values[i]);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32][i] = sum;
    }
    __syncthreads();
    if (threadIdx.x >= 9) return;
    double sum = 0;
    for (int w = 0; w < EWALD_WARPS; ++w) sum += parts[w][threadIdx.x];
    to[threadIdx.x] = sum;
}

// Finds factors f = w S* of the waves: for each pair f(m) + f(-m) and f(m) - f(-m), with real and
// imaginary parts. Also the part of the atoms of this process in the virial. Charges that are not
// finite or too large give factors that are not numbers.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS)
    ewald_factors(const EwaldArguments<T> p) {
    const Long thread = thread_number();
    const double charge = double(p.sums[4 * p.num_pairs]) / CHARGE_UNITS * CHARGE_SHARE;
    const double valid = charge < MAX_CHARGE ? 0.0 : sqrt(-1.0);
    double virial[9] = {};
    for (int i = 0; thread < p.num_threads && i < THREAD_PAIRS; ++i) {
        const WavePairs own = p.pairs[thread];
        const Long pair = own.pair + i * own.step;
        const int m = own.m + i * own.step;
        Complex f[2];
        for (int k = 0; k < 2; ++k) {
            const double sign = k == 0 ? 1 : -1, weight = p.weights[2 * pair + k];
            const Complex s = amplitude(p.sums + 4 * pair, sign);
            const Complex mine = amplitude(p.own_sums + 4 * pair, sign);
            f[k] = {weight * s.re, -weight * s.im};
            if (weight == 0) continue;
            double wave[3], square = 0;
            for (int d = 0; d < 3; ++d) {
                const double* inverse = p.cell->inverse + 3 * d;
                wave[d] = 6.283185307179586477 *
                          (own.n1 * inverse[0] + own.n2 * inverse[1] + sign * m * inverse[2]);
                square += wave[d] * wave[d];
            }
            const double energy = weight * (mine.re * s.re + mine.im * s.im);
            const double along = energy * (p.sigma * p.sigma + 2 / square);
            for (int a = 0; a < 3; ++a)
                for (int b = 0; b < 3; ++b)
                    virial[3 * a + b] += (a == b ? energy : 0.0) - along * wave[a] * wave[b];
        }
        p.factors[4 * pair + 0] = f[0].re + f[1].re + valid;
        p.factors[4 * pair + 1] = f[0].im + f[1].im;
        p.factors[4 * pair + 2] = f[0].re - f[1].re;
        p.factors[4 * pair + 3] = f[0].im - f[1].im;
    }
    store_virial(virial, p.virials + 9 * blockIdx.x);
}

// Stores the sums of all warps of a block for its atoms.
INLINE void store_parts(const EwaldArguments<T>& p, const double (&values)[4], double* memory,
                        Long tile, Long split) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    for (int k = 0; k < 4; ++k) memory[(warp * 4 + k) * EWALD_TILE + lane] = values[k];
    __syncthreads();
    const Long node = tile * EWALD_TILE + lane;
    if (warp >= 4 || node >= p.num_local) return;
    double sum = 0;
    for (int w = 0; w < EWALD_WARPS; ++w) sum += memory[(w * 4 + warp) * EWALD_TILE + lane];
    p.parts[(split * 4 + warp) * p.num_local + node] = sum;
}

// Sums t = exp(i k r) f of all waves: re(t) and n im(t) for the three n. A warp takes a tile of
// atoms, and every eighth column of the block's part of the columns.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS)
    ewald_fields(const EwaldArguments<T> p) {
    extern __shared__ double memory[];
    const Long tile = blockIdx.x / p.splits, split = blockIdx.x % p.splits;
    const int lane = threadIdx.x % 32;
    const Tables t = fill_tables(p, tile, memory);
    __syncthreads();
    double values[4] = {};
    const Long end = (split + 1) * p.num_columns / p.splits;
    for (Long c = split * p.num_columns / p.splits + threadIdx.x / 32; c < end; c += EWALD_WARPS) {
        const WaveColumn column = p.columns[c];
        Complex g = {0, 0}, h = {0, 0};  // sums over n3, and times n3
        for (int i = 0; i < column.count; ++i) {
            const int m = column.from + i;
            const int row = (t.first[2] + m) * EWALD_ROW + lane;
            const double cosine = t.cosine[row], sine = t.sine[row];
            const double* f = p.factors + 4 * (column.first + i);
            g.re += cosine * f[0] - sine * f[3];
            g.im += cosine * f[1] + sine * f[2];
            h.re += m * (cosine * f[2] - sine * f[1]);
            h.im += m * (cosine * f[3] + sine * f[0]);
        }
        const Complex wave = column_wave(t, column.n1, column.n2, lane);
        const double imaginary = wave.re * g.im + wave.im * g.re;
        values[0] += wave.re * g.re - wave.im * g.im;
        values[1] += column.n1 * imaginary;
        values[2] += column.n2 * imaginary;
        values[3] += wave.re * h.im + wave.im * h.re;
    }
    store_parts(p, values, memory, tile, split);
}

// The same sums over the other charges of an open system, and the virial.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS) ewald_pairs(const EwaldArguments<T> p) {
    extern __shared__ double memory[];
    const Long tile = blockIdx.x, node = tile * EWALD_TILE + threadIdx.x % 32;
    const double inverse = 0.70710678118654752 / p.sigma, peak = 0.79788456080286536 / p.sigma;
    double values[4] = {}, virial[9] = {};
    if (node < p.num_local) {
        const double* at = p.positions + 3 * node;
        const double unit = 0.5 * p.cell->scale * charge_of(p, node);
        for (Long j = threadIdx.x / 32; j < p.num_local; j += EWALD_WARPS) {
            if (j == node) continue;
            double v[3], square = 0;
            for (int d = 0; d < 3; ++d) {
                v[d] = at[d] - p.positions[3 * j + d];
                square += v[d] * v[d];
            }
            const double r = sqrt(square), q = charge_of(p, j), g = erf(inverse * r) / r;
            const double slope = q * (g - peak * exp(-inverse * inverse * square)) / square;
            values[0] += q * g;
            for (int a = 0; a < 3; ++a) {
                values[1 + a] += slope * v[a];
                for (int b = 0; b < 3; ++b) virial[3 * a + b] += unit * slope * v[a] * v[b];
            }
        }
    }
    store_parts(p, values, memory, tile, 0);
    store_virial(virial, p.virials + 9 * tile);
}

// Energies, forces and derivatives by charges, from the parts of the sums.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS)
    ewald_energies(const EwaldArguments<T> p) {
    const Long node = thread_number();
    if (node >= p.num_local) return;
    double sum[4] = {};
    for (Long split = 0; split < p.splits; ++split)
        for (int k = 0; k < 4; ++k) sum[k] += p.parts[(split * 4 + k) * p.num_local + node];
    const double q = charge_of(p, node), potential = p.cell->scale * sum[0] + p.cell->own * q;
    p.energies[node] += 0.5 * q * potential;
    p.potentials[node] = potential;
    for (int d = 0; d < 3; ++d)
        p.own_forces[3 * node + d] =
            q * (sum[1] * p.cell->field[d] + sum[2] * p.cell->field[3 + d] +
                 sum[3] * p.cell->field[6 + d]);
}

extern "C" __global__ void __launch_bounds__(EWALD_THREADS)
    ewald_gradients(const EwaldArguments<T> p) {
    const Long node = thread_number();
    if (node >= p.num_local) return;
    T* const row = p.gradient + node * p.width;
    if (!p.add)
        for (int i = 0; i < p.width; ++i) row[i] = T(0);
    row[0] += T(p.potentials[node]);
}

// Adds forces, and the virial of the system to that of the first node.
extern "C" __global__ void __launch_bounds__(EWALD_THREADS)
    ewald_results(const EwaldArguments<T> p) {
    const Long i = thread_number();
    if (i < 3 * p.num_local) p.forces[i] += p.own_forces[i];
    if (p.node_virials == nullptr || p.num_local == 0 || i >= 9) return;
    double sum = 0;
    for (Long part = 0; part < p.num_virials; ++part) sum += p.virials[9 * part + i];
    p.node_virials[i] += sum;
}
