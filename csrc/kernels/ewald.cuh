// The long-range energy of Gaussian charges; csrc/engine/ops/system/ewald.hpp has the formulas.
//
// exp(i k r) is a product of powers of three waves. With p = q exp(2 pi i (n1 s1 + n2 s2)) of a
// column, and c, s = cosine and sine of 2 pi m s3, the sums over atoms
//     re(p) c, im(p) s, re(p) s, im(p) c
// serve n3 = m and -m, and are a product of matrices [columns][atoms] and [atoms][m]. The fields at
// atoms are another one, of [atoms][m] and [m][columns].
#include "kernels/common.cuh"
#include "kernels/ewald.hpp"
#include "kernels/gaussian_pairs.hpp"
#include "kernels/integer_sums.cuh"

struct alignas(2 * sizeof(T)) Complex {
    T re, im;
};

INLINE void sine_cosine(double half_turns, double& s, double& c) { sincospi(half_turns, &s, &c); }
INLINE void sine_cosine(float half_turns, float& s, float& c) { sincospif(half_turns, &s, &c); }

// A thread writes the powers of one direction for an atom. The fraction of the cell is an integer,
// a fraction of 2^64, whose products with n are exact and leave out whole turns.
extern "C" __global__ void __launch_bounds__(256) wave_powers(const EwaldArguments<T> a) {
    const Long number = thread_number();
    if (number >= 3 * Long(a.padded)) return;
    const int d = int(number / a.padded);
    const Long atom = number % a.padded;
    unsigned long long phase = 0;
    if (atom < a.num_atoms) {
        double s = 0;
        for (int k = 0; k < 3; ++k) s += a.positions[3 * atom + k] * a.inverse[3 * k + d];
        s -= floor(s);  // may be rounded to 1
        if (s < 1) phase = (unsigned long long)(s * 0x1p64);
    }
    Complex* const out = (Complex*)a.powers[d] + atom;
    for (int n = 0; n <= a.bounds[d]; ++n) {
        Complex wave;
        sine_cosine(T(Long(n * phase)) * T(0x1p-63), wave.im, wave.re);
        out[Long(n) * a.padded] = wave;
    }
    if (d > 0) return;
    const T charge = atom < a.num_atoms ? a.x[atom * a.width] : T(0);
    a.charges[atom] = charge;
    const double size = fmin(fabs(double(charge)), MAX_CHARGE);
    const Long total = sum_of_warp(Long(ceil(TOTAL_UNITS * size)));
    if (threadIdx.x % 32 == 0) add_integer(a.sums + a.num_sums, total);
}

// exp(2 pi i n s) of an atom in a direction; n is not negative.
INLINE Complex power(const EwaldArguments<T>& a, int d, int n, Long atom) {
    return ((const Complex*)a.powers[d])[Long(n) * a.padded + atom];
}

// exp(2 pi i (n1 s1 + n2 s2)) of an atom.
INLINE Complex column_wave(const EwaldArguments<T>& a, int n1, int n2, Long atom) {
    const Complex u = power(a, 0, n1, atom);
    Complex v = power(a, 1, abs(n2), atom);
    if (n2 < 0) v.im = -v.im;
    return {u.re * v.re - u.im * v.im, u.re * v.im + u.im * v.re};
}

// Component d of a wave vector, 1/Å.
INLINE double wave_vector(const EwaldArguments<T>& a, int d, double n1, double n2, double n3) {
    const double* const row = a.inverse + 3 * d;
    return 6.283185307179586477 * (n1 * row[0] + n2 * row[1] + n3 * row[2]);
}

INLINE WaveColumn column_or_none(const EwaldArguments<T>& a, Long number) {
    return number < a.num_columns ? a.columns[number] : WaveColumn{};
}

// Adds to the sums of SUM_COLUMNS columns and SUM_WAVES m. A thread has 2 columns and 4 m. Tiles of
// atoms are summed in order, and added as integers.
constexpr int SUM_STEP = 16;  // atoms in shared memory
extern "C" __global__ void __launch_bounds__(WAVE_THREADS) wave_sums(const EwaldArguments<T> a) {
    __shared__ Pack left[SUM_STEP][2 * SUM_COLUMNS / LANE_ITEMS + 1];
    __shared__ Pack right[SUM_STEP][2 * SUM_WAVES / LANE_ITEMS + 1];
    __shared__ WaveColumn columns[SUM_COLUMNS];
    const int thread = threadIdx.x;
    const Long split = blockIdx.x % a.num_splits, tile = blockIdx.x / a.num_splits;
    const int first_m = int(tile % a.sum_tiles) * SUM_WAVES;
    if (thread < SUM_COLUMNS)
        columns[thread] = column_or_none(a, tile / a.sum_tiles * SUM_COLUMNS + thread);
    __syncthreads();
    bool any = false;
    for (int c = 0; c < SUM_COLUMNS; ++c)
        any |=
            columns[c].from < first_m + SUM_WAVES && first_m < columns[c].from + columns[c].count;
    if (!any) return;
    const int own_column = 2 * (thread / 4), own_m = 4 * (thread % 4);
    const int own_row = thread % SUM_STEP;  // the atom whose waves it stores
    Long sums[4][8] = {};
    const Long tiles = a.padded / WAVE_ATOMS;
    for (Long t = tiles * split / a.num_splits; t < tiles * (split + 1) / a.num_splits; ++t) {
        T found[4][8] = {};
        for (int step = 0; step < WAVE_ATOMS; step += SUM_STEP) {
            const Long first = WAVE_ATOMS * t + step;
            __syncthreads();
            const T charge = a.charges[first + own_row];
#pragma unroll
            for (int i = 0; i < SUM_COLUMNS; i += WAVE_THREADS / SUM_STEP) {
                const int c = i + thread / SUM_STEP;
                const Complex wave = column_wave(a, columns[c].n1, columns[c].n2, first + own_row);
                ((Complex*)left[own_row])[c] = {charge * wave.re, charge * wave.im};
            }
#pragma unroll
            for (int i = 0; i < SUM_WAVES; i += WAVE_THREADS / SUM_STEP) {
                const int m = i + thread / SUM_STEP;
                ((Complex*)right[own_row])[m] =
                    power(a, 2, min(first_m + m, a.bounds[2]), first + own_row);
            }
            __syncthreads();
#pragma unroll 4
            for (int atom = 0; atom < SUM_STEP; ++atom) {
                T p[4], e[8];
                load_packs(&left[atom][2 * own_column / LANE_ITEMS], p);
                load_packs(&right[atom][2 * own_m / LANE_ITEMS], e);
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 8; ++j) found[i][j] += p[i] * e[j];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[i][j] += llrint(found[i][j] * T(CHARGE_UNITS));
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
        const WaveColumn column = columns[own_column + c];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const int number = first_m + own_m + m - column.from;
            if (number < 0 || number >= column.count) continue;
            const Long of_pair[4] = {sums[2 * c][2 * m], sums[2 * c + 1][2 * m + 1],
                                     sums[2 * c][2 * m + 1], sums[2 * c + 1][2 * m]};
#pragma unroll
            for (int i = 0; i < 4; ++i)
                add_integer(a.sums + 4 * (column.first + number) + i, of_pair[i]);
        }
    }
}

// S of the waves n3 = m and -m of a pair: real parts, then imaginary parts.
INLINE void amplitudes(const Long* sums, double (&found)[2][2]) {
    double s[4];
    for (int i = 0; i < 4; ++i) s[i] = double(sums[i]) / CHARGE_UNITS;
    found[0][0] = s[0] - s[1], found[1][0] = s[2] + s[3];
    found[0][1] = s[0] + s[1], found[1][1] = s[3] - s[2];
}

// A warp finds the factors of a column, and its part in minus the derivative by a strain.
extern "C" __global__ void __launch_bounds__(32 * FACTOR_COLUMNS)
    wave_factors(const EwaldArguments<T> a) {
    __shared__ double parts[FACTOR_COLUMNS][6];
    const int lane = threadIdx.x % 32, warp = warp_of_block();
    const WaveColumn column = column_or_none(a, Long(blockIdx.x) * FACTOR_COLUMNS + warp);
    double virial[6] = {};
    for (int i = lane; i < column.count; i += 32) {
        const Long pair = column.first + i;
        const double* const weight = a.weights + 2 * pair;
        double all[2][2], mine[2][2];
        amplitudes(a.sums + 4 * pair, all);
        amplitudes(a.own_sums + 4 * pair, mine);
        for (int part = 0; part < 2; ++part) {
            const double sign = part == 0 ? 1 : -1;  // the factor is conjugate
            const double up = sign * weight[0] * all[part][0];
            const double down = sign * weight[1] * all[part][1];
            a.factors[4 * pair + part] = T(up + down);
            a.factors[4 * pair + 2 + part] = T(up - down);
        }
        for (int back = 0; back < 2; ++back) {
            if (weight[back] == 0) continue;
            const int m = back == 0 ? column.from + i : -column.from - i;
            double k[3], square = 0;
            for (int d = 0; d < 3; ++d) {
                k[d] = wave_vector(a, d, column.n1, column.n2, m);
                square += k[d] * k[d];
            }
            const double energy =
                weight[back] * (mine[0][back] * all[0][back] + mine[1][back] * all[1][back]);
            const double along = energy * (a.sigma * a.sigma + 2 / square);
            for (int d = 0; d < 3; ++d) {
                virial[d] += energy - along * k[d] * k[d];
                virial[3 + d] -= along * k[d / 2] * k[1 + (d + 1) / 2];
            }
        }
    }
    for (int i = 0; i < 6; ++i) {
        virial[i] = sum_of_warp(virial[i]);
        if (lane == 0) parts[warp][i] = virial[i];
    }
    __syncthreads();
    if (threadIdx.x < 6) {
        double sum = 0;
        for (int w = 0; w < FACTOR_COLUMNS; ++w) sum += parts[w][threadIdx.x];
        a.virial_sums[6 * Long(blockIdx.x) + threadIdx.x] = sum;
    }
    if (thread_number() == 0 && double(a.sums[a.num_sums]) >= TOTAL_UNITS * MAX_CHARGE)
        a.failures[0] = 1;
}

// Sums t = exp(i k r) f over a part of the columns, for a tile of atoms. A thread has 4 atoms and 2
// columns. All sums are in a fixed order, which depends on the system alone.
constexpr int FIELD_STEP = 16;                  // m in shared memory
constexpr int COLUMN_STEP = FIELD_COLUMNS / 2;  // between the columns of a thread
extern "C" __global__ void __launch_bounds__(WAVE_THREADS, sizeof(T) == 4 ? 4 : 2)
    wave_fields(const EwaldArguments<T> a) {
    __shared__ Pack waves[FIELD_STEP][2 * WAVE_ATOMS / LANE_ITEMS];
    __shared__ Pack factors[FIELD_STEP][4 * FIELD_COLUMNS / LANE_ITEMS];
    __shared__ WaveColumn columns[FIELD_COLUMNS];
    const int thread = threadIdx.x, lane = thread % 32;
    const int own_atom = 4 * (lane % 4 + 4 * warp_of_block()), own_column = lane / 4;
    const Long part = blockIdx.x % a.num_parts;
    const Long first_atom = Long(blockIdx.x) / a.num_parts * WAVE_ATOMS;
    const Long tiles = (a.num_columns + FIELD_COLUMNS - 1) / FIELD_COLUMNS;
    double total[4][4] = {};
    for (Long t = tiles * part / a.num_parts; t < tiles * (part + 1) / a.num_parts; ++t) {
        __syncthreads();
        if (thread < FIELD_COLUMNS) columns[thread] = column_or_none(a, t * FIELD_COLUMNS + thread);
        __syncthreads();
        int from = a.bounds[2], end = 0;
        for (int c = 0; c < FIELD_COLUMNS; ++c) {
            if (columns[c].count == 0) continue;
            from = min(from, columns[c].from);
            end = max(end, columns[c].from + columns[c].count);
        }
        T g[4][2][4] = {};  // sums over m of real and imaginary parts, and of m times these
        for (int first = from; first < end; first += FIELD_STEP) {
            __syncthreads();
            const int atom = thread % WAVE_ATOMS;
#pragma unroll
            for (int i = 0; i < FIELD_STEP; i += WAVE_THREADS / WAVE_ATOMS) {
                const int k = i + thread / WAVE_ATOMS;
                ((Complex*)waves[k])[atom] =
                    power(a, 2, min(first + k, a.bounds[2]), first_atom + atom);
            }
            for (int i = thread; i < FIELD_STEP * FIELD_COLUMNS; i += WAVE_THREADS) {
                const int c = i / FIELD_STEP, k = i % FIELD_STEP;
                const int number = first + k - columns[c].from;
                const bool there = number >= 0 && number < columns[c].count;
                const T* const of_pair = a.factors + 4 * (columns[c].first + number);
                for (int j = 0; j < 4; ++j) ((T*)factors[k])[4 * c + j] = there ? of_pair[j] : T(0);
            }
            __syncthreads();
            const int count = min(FIELD_STEP, end - first);
#pragma unroll 2
            for (int k = 0; k < count; ++k) {
                const T m = T(first + k);
                T e[8], f[2][4];
                load_packs(&waves[k][2 * own_atom / LANE_ITEMS], e);
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    load_packs(&factors[k][4 * (own_column + COLUMN_STEP * j) / LANE_ITEMS], f[j]);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const T c = e[2 * i], s = e[2 * i + 1], mc = m * c, ms = m * s;
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        g[i][j][0] += c * f[j][0];
                        g[i][j][1] += c * f[j][1];
                        g[i][j][2] += mc * f[j][2];
                        g[i][j][3] += mc * f[j][3];
                        g[i][j][0] -= s * f[j][3];
                        g[i][j][1] += s * f[j][2];
                        g[i][j][2] -= ms * f[j][1];
                        g[i][j][3] += ms * f[j][0];
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            T of_tile[4] = {};
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const T* const sum = g[i][j];
                const WaveColumn& column = columns[own_column + COLUMN_STEP * j];
                const int n1 = column.n1, n2 = column.n2;
                const Complex p = column_wave(a, n1, n2, first_atom + own_atom + i);
                const T imaginary = p.re * sum[1] + p.im * sum[0];
                of_tile[0] += p.re * sum[0] - p.im * sum[1];
                of_tile[1] += imaginary * T(n1);
                of_tile[2] += imaginary * T(n2);
                of_tile[3] += p.re * sum[3] + p.im * sum[2];
            }
#pragma unroll
            for (int v = 0; v < 4; ++v) total[i][v] += double(of_tile[v]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int v = 0; v < 4; ++v) {
            const double sum = sum_of_warp<4>(total[i][v]);
            if (lane < 4) a.fields[(4 * part + v) * a.padded + first_atom + own_atom + i] = sum;
        }
}

// Adds the results of an atom from dE/dq at the other charges, and the force on a unit charge.
INLINE void add_results(const EwaldArguments<T>& a, Long atom, double potential,
                        const double (&force)[3]) {
    const double charge = double(a.x[atom * a.width]);
    potential += a.own * charge;
    a.energies[atom] += 0.5 * charge * potential;
    if (a.forces == nullptr) return;
    for (int d = 0; d < 3; ++d) a.forces[3 * atom + d] += charge * force[d];
    if (a.gradient == nullptr) return;
    T* const row = a.gradient + atom * a.width;
    for (int i = 0; i < a.width && !a.add; ++i) row[i] = 0;
    row[0] += T(potential);
}

extern "C" __global__ void __launch_bounds__(128) add_fields(const EwaldArguments<T> a) {
    const Long atom = thread_number();
    if (atom < a.num_atoms) {
        double field[4] = {}, force[3];
        for (Long part = 0; part < a.num_parts; ++part)
            for (int v = 0; v < 4; ++v) field[v] += a.fields[(4 * part + v) * a.padded + atom];
        for (int d = 0; d < 3; ++d) force[d] = 2 * wave_vector(a, d, field[1], field[2], field[3]);
        add_results(a, atom, 2 * field[0], force);
    }
    if (a.virials == nullptr || atom >= 32) return;
    const Long rows = (a.num_columns + FACTOR_COLUMNS - 1) / FACTOR_COLUMNS;
    for (int i = 0; i < 6; ++i) {
        double sum = 0;
        for (Long row = atom; row < rows; row += 32) sum += a.virial_sums[6 * row + i];
        sum = sum_of_warp(sum);
        if (atom == 0) a.virials[i] += sum;
    }
}

// An open system: a warp sums over the other charges. The force of a pair is `slope` times the
// vector between its atoms.
extern "C" __global__ void __launch_bounds__(128) open_charges(const EwaldArguments<T> a) {
    const Long atom = thread_number() / 32;
    if (atom >= a.num_atoms) return;
    const double* const at = a.positions + 3 * atom;
    const GaussianPair pair{0.70710678118654752 / a.sigma, 0.0};
    double sums[10] = {};  // dE/dq, force on a unit charge, virial
    for (Long other = threadIdx.x % 32; other < a.num_atoms; other += 32) {
        if (other == atom) continue;
        double v[3], square = 0;
        for (int d = 0; d < 3; ++d) {
            v[d] = at[d] - a.positions[3 * other + d];
            square += v[d] * v[d];
        }
        const double charge = a.unit * double(a.x[other * a.width]);
        double by_r;
        sums[0] += charge * pair.value(square, by_r);
        const double slope = -charge * by_r;
        for (int d = 0; d < 3; ++d) {
            sums[1 + d] += slope * v[d];
            sums[4 + d] += slope * v[d] * v[d];
            sums[7 + d] += slope * v[d / 2] * v[1 + (d + 1) / 2];
        }
    }
    for (int i = 0; i < 10; ++i) sums[i] = sum_of_warp(sums[i]);
    if (threadIdx.x % 32 > 0) return;
    const double force[3] = {sums[1], sums[2], sums[3]};
    add_results(a, atom, sums[0], force);
    const double half = 0.5 * double(a.x[atom * a.width]);
    for (int i = 0; i < 6 && a.virials != nullptr; ++i)
        a.virials[6 * atom + i] += half * sums[4 + i];
}
