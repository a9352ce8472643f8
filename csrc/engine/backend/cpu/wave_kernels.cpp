// The functions of WaveKernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>.
#include "engine/backend/cpu/wave_kernels.hpp"

#include <algorithm>
#include <cmath>

#include "engine/backend/cpu/lanes.hpp"

// NOTES: included after exponential() and square_root(), which its functions call.
#include "kernels/particle_mesh.hpp"

namespace mdcg {
namespace {

using V = DoubleVector;
constexpr int LANES = lanes<double>;

void wave_powers(const std::uint64_t* phases, int count, double* cosine, double* sine) {
    constexpr double UNIT = 6.283185307179586477 * 0x1p-64;
    for (int n = 0; n < count; ++n)
        for (int a = 0; a < WAVE_TILE; a += LANES) {
            V angle;
            // the product wraps, which leaves out whole turns
            for (int l = 0; l < LANES; ++l)
                angle[l] = static_cast<double>(static_cast<std::int64_t>(
                               static_cast<std::uint64_t>(n) * phases[a + l])) *
                           UNIT;
            V s, c;
            sine_cosine(angle, s, c);
            store(cosine + n * WAVE_TILE + a, c);
            store(sine + n * WAVE_TILE + a, s);
        }
}

struct Complex {
    V re, im;
};

// exp(2 pi i (n1 s1 + n2 s2)) of the atoms from `a` on; n1 is not negative.
inline Complex column_wave(const WaveTile& tile, const WaveColumn& column, int a) {
    const int n1 = column.n1 * WAVE_TILE + a, n2 = std::abs(column.n2) * WAVE_TILE + a;
    const V c1 = load<V>(tile.cosine[0] + n1), s1 = load<V>(tile.sine[0] + n1);
    const V c2 = load<V>(tile.cosine[1] + n2);
    const V s2 = load<V>(tile.sine[1] + n2) * (column.n2 < 0 ? -1.0 : 1.0);
    return {c1 * c2 - s1 * s2, c1 * s2 + s1 * c2};
}

void wave_sums(const WaveTile& tile, const double* charges, const WaveColumn* columns,
               std::int64_t num_columns, std::int64_t* sums) {
    for (const WaveColumn* column = columns; column < columns + num_columns; ++column) {
        Complex p[WAVE_TILE / LANES];
        for (int v = 0; v < WAVE_TILE / LANES; ++v) {
            p[v] = column_wave(tile, *column, v * LANES);
            const V charge = load<V>(charges + v * LANES);
            p[v].re *= charge, p[v].im *= charge;
        }
        std::int64_t* out = sums + 4 * column->first;
        for (int m = column->from; m < column->from + column->count; ++m, out += 4) {
            V found[4] = {};
            for (int v = 0; v < WAVE_TILE / LANES; ++v) {
                const V c = load<V>(tile.cosine[2] + m * WAVE_TILE + v * LANES);
                const V s = load<V>(tile.sine[2] + m * WAVE_TILE + v * LANES);
                found[0] += p[v].re * c, found[1] += p[v].im * s;
                found[2] += p[v].re * s, found[3] += p[v].im * c;
            }
            for (int i = 0; i < 4; ++i) out[i] += std::llrint(sum(found[i]) * CHARGE_UNITS);
        }
    }
}

template <bool with_curvatures>
void fields_of(const WaveTile& tile, const WaveColumn* columns, std::int64_t num_columns,
               const double* factors, double* real, double* slopes, double* curvatures) {
    for (int a = 0; a < WAVE_TILE; a += LANES) {
        V total{}, along[3] = {}, twice[6] = {};
        for (const WaveColumn* column = columns; column < columns + num_columns; ++column) {
            Complex g{}, h{}, c2{};  // sums over n3, times n3, and times its square
            const double* f = factors + 4 * column->first;
            for (int m = column->from; m < column->from + column->count; ++m, f += 4) {
                const V c = load<V>(tile.cosine[2] + m * WAVE_TILE + a);
                const V s = load<V>(tile.sine[2] + m * WAVE_TILE + a);
                const Complex one{c * f[0] - s * f[3], c * f[1] + s * f[2]};
                g.re += one.re, g.im += one.im;
                const V mc = c * double(m), ms = s * double(m);
                h.re += mc * f[2] - ms * f[1], h.im += mc * f[3] + ms * f[0];
                if (!with_curvatures) continue;
                const double square = double(m) * m;
                c2.re += one.re * square, c2.im += one.im * square;
            }
            const Complex p = column_wave(tile, *column, a);
            const double n1 = column->n1, n2 = column->n2;
            const V imaginary = p.re * g.im + p.im * g.re, value = p.re * g.re - p.im * g.im;
            total += value;
            along[0] += imaginary * n1, along[1] += imaginary * n2;
            along[2] += p.re * h.im + p.im * h.re;
            if (!with_curvatures) continue;
            const V third = p.re * h.re - p.im * h.im;
            twice[0] += value * (n1 * n1), twice[1] += value * (n2 * n2);
            twice[2] += p.re * c2.re - p.im * c2.im, twice[3] += value * (n1 * n2);
            twice[4] += third * n1, twice[5] += third * n2;
        }
        store(real + a, total);
        for (int d = 0; d < 3; ++d) store(slopes + d * WAVE_TILE + a, along[d]);
        for (int d = 0; d < 6 && with_curvatures; ++d)
            store(curvatures + d * WAVE_TILE + a, twice[d]);
    }
}

void wave_fields(const WaveTile& tile, const WaveColumn* columns, std::int64_t num_columns,
                 const double* factors, double* real, double* slopes) {
    fields_of<false>(tile, columns, num_columns, factors, real, slopes, nullptr);
}

void wave_curvatures(const WaveTile& tile, const WaveColumn* columns, std::int64_t num_columns,
                     const double* factors, double* real, double* slopes, double* curvatures) {
    fields_of<true>(tile, columns, num_columns, factors, real, slopes, curvatures);
}

// -- particle mesh -------------------------------------------------------------------------------

void mesh_window(int points, const double* rests, MeshWindow& found) {
    const double unit = 2.0 / points;
    for (int d = 0; d < 3; ++d)
        for (int k = 0; k < WINDOW_WIDTH; k += LANES) {
            V z;
            for (int l = 0; l < LANES; ++l) z[l] = (k + l - (points / 2 - 1) - rests[d]) * unit;
            const Window<V> w = window(WINDOW_EXPONENT * points, z);
            store(found.values[d] + k, w.value);
            store(found.slopes[d] + k, w.slope * -unit);
        }
    for (int d = 0; d < 3; ++d)
        for (int k = points; k < WINDOW_WIDTH; ++k) found.values[d][k] = found.slopes[d][k] = 0;
}

template <int WIDTH>
void spread(int points, double charge, const MeshWindow& window, double* const* rows) {
    V along[WIDTH / LANES];
    for (int v = 0; v < WIDTH / LANES; ++v) along[v] = load<V>(window.values[2] + v * LANES);
    for (int k = 0; k < points; ++k) {
        const double part = charge * window.values[1][k];
        for (int v = 0; v < WIDTH / LANES; ++v) {
            double* const at = rows[k] + v * LANES;
            store(at, load<V>(at) + along[v] * part);
        }
    }
}
void mesh_spread(int points, double charge, const MeshWindow& window, double* const* rows) {
    if (points <= WINDOW_WIDTH / 2) return spread<WINDOW_WIDTH / 2>(points, charge, window, rows);
    spread<WINDOW_WIDTH>(points, charge, window, rows);
}

template <int WIDTH>
void gather(int points, const MeshWindow& window, const double* const* rows, double* sums) {
    constexpr int VECTORS = WIDTH / LANES;
    V total[VECTORS] = {}, along1[VECTORS] = {}, along2[VECTORS] = {};
    for (int k1 = 0; k1 < points; ++k1) {
        V plane[VECTORS] = {}, slope[VECTORS] = {};
        for (int k2 = 0; k2 < points; ++k2)
            for (int v = 0; v < VECTORS; ++v) {
                const V found = load<V>(rows[k1 * points + k2] + v * LANES);
                plane[v] += found * window.values[1][k2];
                slope[v] += found * window.slopes[1][k2];
            }
        for (int v = 0; v < VECTORS; ++v) {
            total[v] += plane[v] * window.values[0][k1];
            along1[v] += plane[v] * window.slopes[0][k1];
            along2[v] += slope[v] * window.values[0][k1];
        }
    }
    V of[4] = {};
    for (int v = 0; v < VECTORS; ++v) {
        const V value = load<V>(window.values[2] + v * LANES);
        of[0] += total[v] * value, of[1] += along1[v] * value, of[2] += along2[v] * value;
        of[3] += total[v] * load<V>(window.slopes[2] + v * LANES);
    }
    for (int i = 0; i < 4; ++i) sums[i] = sum(of[i]);
}
void mesh_gather(int points, const MeshWindow& window, const double* const* rows, double* sums) {
    if (points <= WINDOW_WIDTH / 2) return gather<WINDOW_WIDTH / 2>(points, window, rows, sums);
    gather<WINDOW_WIDTH>(points, window, rows, sums);
}

// Products of 4 packed rows and `VECTORS` vectors of columns.
template <int VECTORS>
inline void multiply(std::int64_t depth, std::int64_t columns, const double* packed,
                     const double* table, double* out) {
    V sums[4][VECTORS] = {};
    for (std::int64_t k = 0; k < depth; ++k) {
        const double* const from = packed + k * MESH_ROWS;
        V right[VECTORS];
        for (int v = 0; v < VECTORS; ++v) right[v] = load<V>(table + k * columns + v * LANES);
        for (int r = 0; r < 4; ++r)
            for (int v = 0; v < VECTORS; ++v) sums[r][v] += from[r] * right[v];
    }
    for (int r = 0; r < 4; ++r)
        for (int v = 0; v < VECTORS; ++v) store(out + r * columns + v * LANES, sums[r][v]);
}

void mesh_product(std::int64_t depth, std::int64_t columns, const double* in, std::int64_t stride,
                  const double* table, double* packed, double* out) {
    static_assert(MESH_STEP % LANES == 0, "whole vectors");
    for (std::int64_t k = 0; k < depth; ++k)
        std::copy_n(in + k * stride, MESH_ROWS, packed + k * MESH_ROWS);
    std::int64_t column = 0;
    for (; column + 2 * LANES <= columns; column += 2 * LANES)
        for (int r = 0; r < MESH_ROWS; r += 4)
            multiply<2>(depth, columns, packed + r, table + column, out + r * columns + column);
    for (; column < columns; column += LANES)
        for (int r = 0; r < MESH_ROWS; r += 4)
            multiply<1>(depth, columns, packed + r, table + column, out + r * columns + column);
}

}  // namespace

template <int level>
WaveKernels wave_kernels() {
    return {&wave_powers, &wave_sums,   &wave_fields, &wave_curvatures,
            &mesh_window, &mesh_spread, &mesh_gather, &mesh_product};
}
template WaveKernels wave_kernels<MDCG_SIMD_LEVEL>();

}  // namespace mdcg
