// The functions of WaveKernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>.
#include "engine/backend/cpu/wave_kernels.hpp"

#include <cmath>

#include "engine/backend/cpu/lanes.hpp"

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

void wave_fields(const WaveTile& tile, const WaveColumn* columns, std::int64_t num_columns,
                 const double* factors, double* real, double* slopes) {
    for (int a = 0; a < WAVE_TILE; a += LANES) {
        V total{}, along[3] = {};
        for (const WaveColumn* column = columns; column < columns + num_columns; ++column) {
            Complex g{}, h{};  // sums over n3, and times n3
            const double* f = factors + 4 * column->first;
            for (int m = column->from; m < column->from + column->count; ++m, f += 4) {
                const V c = load<V>(tile.cosine[2] + m * WAVE_TILE + a);
                const V s = load<V>(tile.sine[2] + m * WAVE_TILE + a);
                g.re += c * f[0] - s * f[3], g.im += c * f[1] + s * f[2];
                const V mc = c * double(m), ms = s * double(m);
                h.re += mc * f[2] - ms * f[1], h.im += mc * f[3] + ms * f[0];
            }
            const Complex p = column_wave(tile, *column, a);
            const V imaginary = p.re * g.im + p.im * g.re;
            total += p.re * g.re - p.im * g.im;
            along[0] += imaginary * double(column->n1), along[1] += imaginary * double(column->n2);
            along[2] += p.re * h.im + p.im * h.re;
        }
        store(real + a, total);
        for (int d = 0; d < 3; ++d) store(slopes + d * WAVE_TILE + a, along[d]);
    }
}

}  // namespace

template <int level>
WaveKernels wave_kernels() {
    return {&wave_powers, &wave_sums, &wave_fields};
}
template WaveKernels wave_kernels<MDCG_SIMD_LEVEL>();

}  // namespace mdcg
