// The long-range energy of Gaussian charges by a particle mesh. Charges are spread on a mesh in
// fractions of the cell, and products of matrices transform it to the wanted modes alone. These
// give the sums of kernels/ewald.cuh up to the error of the window, and its factors become
// potentials on the mesh in the same way. Forces are derivatives of the energy of the mesh.
#include "kernels/integer_sums.cuh"
#include "kernels/particle_mesh.hpp"

constexpr int POINTS = WINDOW_POINTS<T>;

// The windows of the atoms of a block.
template <bool SLOPES>
struct Windows {
    int first[MESH_ATOMS][3];  // points of the mesh, the first of each window
    T values[MESH_ATOMS][3][POINTS], slopes[SLOPES ? MESH_ATOMS : 1][3][POINTS];

    INLINE void fill(const MeshArguments<T>& a, Long first_atom) {
        __shared__ T rests[MESH_ATOMS][3];
        const int thread = threadIdx.x;
        if (thread < 3 * MESH_ATOMS) {
            const int atom = thread / 3, d = thread % 3;
            unsigned long long rest = 0;
            int point = 0;
            if (first_atom + atom < a.sum.num_atoms) {
                const double* const at = a.sum.positions + 3 * (first_atom + atom);
                double s = 0;
                for (int k = 0; k < 3; ++k) s += at[k] * a.sum.inverse[3 * k + d];
                s -= floor(s);  // may be rounded to 1
                if (s < 1) point = mesh_point((unsigned long long)(s * 0x1p64), a.points[d], rest);
            }
            point -= POINTS / 2 - 1;
            first[atom][d] = point < 0 ? point + a.points[d] : point;
            rests[atom][d] = T(rest) * T(0x1p-64);
        }
        __syncthreads();
        for (int i = thread; i < MESH_ATOMS * 3 * POINTS; i += MESH_THREADS) {
            const int atom = i / (3 * POINTS), d = i / POINTS % 3, k = i % POINTS;
            const T distance = T(k - (POINTS / 2 - 1)) - rests[atom][d];
            const Window<T> found = window(T(WINDOW_EXPONENT * POINTS), distance * T(2.0 / POINTS));
            values[atom][d][k] = found.value;
            if (SLOPES) slopes[atom][d][k] = found.slope * T(-2.0 / POINTS);  // by the position
        }
        __syncthreads();
    }
};

// Number k of the points of a window in a direction.
INLINE int window_point(int first, int k, int count) {
    const int point = first + k;
    return point < count ? point : point - count;
}

// Calls body(k1, k2, k3, number of the point of the mesh) for the points of an atom's window that a
// lane takes.
template <typename Body>
INLINE void each_point(const MeshArguments<T>& a, const int (&first)[3], const Body& body) {
#pragma unroll 4
    for (int i = threadIdx.x % 32; i < POINTS * POINTS * POINTS; i += 32) {
        const int k1 = i / (POINTS * POINTS), k2 = i / POINTS % POINTS, k3 = i % POINTS;
        const int row = window_point(first[0], k1, a.points[0]) * a.points[1] +
                        window_point(first[1], k2, a.points[1]);
        body(k1, k2, k3, Long(row) * a.points[2] + window_point(first[2], k3, a.points[2]));
    }
}

// A warp spreads the charges of some atoms.
extern "C" __global__ void __launch_bounds__(MESH_THREADS)
    spread_charges(const MeshArguments<T> a) {
    __shared__ Windows<false> windows;
    const Long first_atom = Long(blockIdx.x) * MESH_ATOMS;
    windows.fill(a, first_atom);
    for (int atom = warp_of_block(); atom < MESH_ATOMS; atom += MESH_THREADS / 32) {
        if (first_atom + atom >= a.sum.num_atoms) break;
        const T charge = a.sum.x[(first_atom + atom) * a.sum.width];
        const auto& values = windows.values[atom];
        each_point(a, windows.first[atom], [&](int k1, int k2, int k3, Long point) {
            const T part = charge * values[0][k1] * values[1][k2] * values[2][k3];
            add_integer(a.charges + point, llrint(part * T(CHARGE_UNITS)));
        });
    }
    if (threadIdx.x >= MESH_ATOMS) return;
    const Long own = first_atom + threadIdx.x;
    const double charge = own < a.sum.num_atoms ? double(a.sum.x[own * a.sum.width]) : 0;
    const Long total = sum_of_warp(Long(ceil(TOTAL_UNITS * fmin(fabs(charge), MAX_CHARGE))));
    if (threadIdx.x == 0) add_integer(a.sum.sums + a.sum.num_sums, total);
}

// A thread has 8 rows and 4 columns of a block's product.
constexpr int OWN_PACKS = 4 / LANE_ITEMS;
constexpr int LEFT_PACKS = MESH_STEP * PRODUCT_ROWS / LANE_ITEMS / PRODUCT_THREADS;

INLINE Pack load_pack(const T* from) { return *(const Pack*)from; }
INLINE Pack load_pack(const Long* from) {
    Pack found;
#pragma unroll
    for (int v = 0; v < LANE_ITEMS; ++v) found.v[v] = T(from[v]) * T(1 / CHARGE_UNITS);
    return found;
}

// Copies MESH_STEP rows of a matrix to registers, WIDTH columns from `first` on, with zeros behind
// the last one.
template <int WIDTH, int PACKS, typename In>
INLINE void fetch(const In* from, Long width, Long first, Pack (&to)[PACKS]) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int item = (threadIdx.x + i * PRODUCT_THREADS) * LANE_ITEMS;
        const Long column = first + item % WIDTH;
        to[i] = Pack{};
        if (item < MESH_STEP * WIDTH && column < width)
            to[i] = load_pack(from + item / WIDTH * width + column);
    }
}
template <int WIDTH, int PACKS>
INLINE void keep(const Pack (&from)[PACKS], Pack* to) {
#pragma unroll
    for (int i = 0; i < PACKS; ++i) {
        const int number = threadIdx.x + i * PRODUCT_THREADS;
        if (number < MESH_STEP * WIDTH / LANE_ITEMS) to[number] = from[i];
    }
}

// NOTES: gemm.cuh cannot serve: the shared dimension is the first of both factors here, so that no
// transform is followed by a transposition.
template <typename In>
INLINE void multiply(const MeshProduct<T>& p, const In* in) {
    constexpr int ROW_PACKS = PRODUCT_ROWS / LANE_ITEMS,
                  COLUMN_PACKS = PRODUCT_COLUMNS / LANE_ITEMS;
    __shared__ Pack left[2][MESH_STEP * ROW_PACKS], right[2][MESH_STEP * COLUMN_PACKS];
    const int across = (p.columns + PRODUCT_COLUMNS - 1) / PRODUCT_COLUMNS;
    const Long first_row = Long(blockIdx.x) / across * PRODUCT_ROWS;
    const int first_column = int(blockIdx.x % across) * PRODUCT_COLUMNS;
    const int own_row = threadIdx.x / 8, own_column = threadIdx.x % 8;
    Pack next_left[LEFT_PACKS], next_right[1];
    T sum[8][4] = {};
    const auto fetch_step = [&](int k) {
        fetch<PRODUCT_ROWS>(in + k * p.rows, p.rows, first_row, next_left);
        fetch<PRODUCT_COLUMNS>(p.table + Long(k) * p.columns, p.columns, first_column, next_right);
    };
    const auto keep_step = [&](int buffer) {
        keep<PRODUCT_ROWS>(next_left, left[buffer]);
        keep<PRODUCT_COLUMNS>(next_right, right[buffer]);
    };
    fetch_step(0);
    keep_step(0);
    __syncthreads();
    for (int k = 0, buffer = 0; k < p.depth; k += MESH_STEP, buffer ^= 1) {
        const bool more = k + MESH_STEP < p.depth;
        if (more) fetch_step(k + MESH_STEP);
#pragma unroll
        for (int i = 0; i < MESH_STEP; ++i) {
            T a[8], b[4];
            const Pack* const rows = left[buffer] + i * ROW_PACKS + OWN_PACKS * own_row;
            load_packs(rows, (T(&)[4])a[0]);
            load_packs(rows + ROW_PACKS / 2, (T(&)[4])a[4]);
            load_packs(right[buffer] + i * COLUMN_PACKS + OWN_PACKS * own_column, b);
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int c = 0; c < 4; ++c) sum[r][c] += a[r] * b[c];
        }
        if (more) keep_step(buffer ^ 1);
        __syncthreads();
    }
    const int column = first_column + 4 * own_column;
    if (column >= p.columns) return;
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const Long row = first_row + r / 4 * (PRODUCT_ROWS / 2) + 4 * own_row + r % 4;
        if (row >= p.rows) continue;
        Pack* const out = (Pack*)(p.out + row * p.columns + column);
#pragma unroll
        for (int i = 0; i < OWN_PACKS; ++i)
#pragma unroll
            for (int v = 0; v < LANE_ITEMS; ++v) out[i].v[v] = sum[r][i * LANE_ITEMS + v];
    }
}
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS)
    transform_charges(const MeshProduct<T> p) {
    multiply(p, p.charges);
}
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS) transform(const MeshProduct<T> p) {
    multiply(p, p.in);
}

// The eight amplitudes of |n1|, |n2| and |n3|: products of a cosine (0) or a sine (1) in each
// direction.
struct ModeProducts {
    T* at;
    Long step1;
    int step2;
    INLINE ModeProducts(const MeshArguments<T>& a, const WaveColumn& column, int m)
        : step1(Long(a.modes[1]) * a.modes[2]), step2(a.modes[2]) {
        at = a.amplitudes + 2 * (column.n1 * step1 + abs(column.n2) * step2 + m);
    }
    INLINE T& operator()(int part1, int part2, int part3) const {
        return at[part1 * step1 + part2 * step2 + part3];
    }
};

// A warp finds the sums of a column.
extern "C" __global__ void __launch_bounds__(32 * FACTOR_COLUMNS)
    mesh_sums(const MeshArguments<T> a) {
    const Long number = Long(blockIdx.x) * FACTOR_COLUMNS + warp_of_block();
    if (number >= a.sum.num_columns) return;
    const WaveColumn column = a.sum.columns[number];
    const T sign = column.n2 < 0 ? T(-1) : T(1);
    for (int i = threadIdx.x % 32; i < column.count; i += 32) {
        const ModeProducts of(a, column, column.from + i);
        const T found[4] = {of(0, 0, 0) - sign * of(1, 1, 0), of(1, 0, 1) + sign * of(0, 1, 1),
                            of(0, 0, 1) - sign * of(1, 1, 1), of(1, 0, 0) + sign * of(0, 1, 0)};
        Long* const out = a.sum.sums + 4 * (column.first + i);
        for (int j = 0; j < 4; ++j) out[j] = llrint(double(found[j]) * CHARGE_UNITS);
    }
}

// A warp adds the factors of a column to those of cosines and sines. At most two columns, n2 and
// -n2, add to the same number, which is zero before, so that their order does not matter.
extern "C" __global__ void __launch_bounds__(32 * FACTOR_COLUMNS)
    mesh_factors(const MeshArguments<T> a) {
    const Long number = Long(blockIdx.x) * FACTOR_COLUMNS + warp_of_block();
    if (number >= a.sum.num_columns) return;
    const WaveColumn column = a.sum.columns[number];
    const T sign = column.n2 < 0 ? T(-1) : T(1);
    for (int i = threadIdx.x % 32; i < column.count; i += 32) {
        const ModeProducts of(a, column, column.from + i);
        const T* const f = a.sum.factors + 4 * (column.first + i);
        atomicAdd(&of(0, 0, 0), f[0]);
        atomicAdd(&of(0, 0, 1), -f[3]);
        atomicAdd(&of(1, 0, 0), -f[1]);
        atomicAdd(&of(1, 0, 1), -f[2]);
        if (column.n2 == 0) continue;
        atomicAdd(&of(1, 1, 0), -sign * f[0]);
        atomicAdd(&of(1, 1, 1), sign * f[3]);
        atomicAdd(&of(0, 1, 0), -sign * f[1]);
        atomicAdd(&of(0, 1, 1), -sign * f[2]);
    }
}

// A warp sums the potentials in the windows of some atoms. The results are those of wave_fields.
extern "C" __global__ void __launch_bounds__(MESH_THREADS)
    gather_potentials(const MeshArguments<T> a) {
    __shared__ Windows<true> windows;
    const Long first_atom = Long(blockIdx.x) * MESH_ATOMS;
    windows.fill(a, first_atom);
    for (int atom = warp_of_block(); atom < MESH_ATOMS; atom += MESH_THREADS / 32) {
        if (first_atom + atom >= a.sum.num_atoms) break;
        const auto& values = windows.values[atom];
        const auto& slopes = windows.slopes[atom];
        T sums[4] = {};
        each_point(a, windows.first[atom], [&](int k1, int k2, int k3, Long point) {
            const T potential = a.potentials[point], v1 = values[0][k1], v2 = values[1][k2];
            const T along = potential * values[2][k3];
            sums[0] += v1 * v2 * along;
            sums[1] += slopes[0][k1] * v2 * along;
            sums[2] += v1 * slopes[1][k2] * along;
            sums[3] += v1 * v2 * (potential * slopes[2][k3]);
        });
        for (int v = 0; v < 4; ++v) {
            double sum = sum_of_warp(double(sums[v]));
            if (v > 0) sum *= -a.points[v - 1] * 0.159154943091895336;  // 1 / (2 pi)
            if (threadIdx.x % 32 == 0) a.sum.fields[v * a.sum.padded + first_atom + atom] = sum;
        }
    }
}
