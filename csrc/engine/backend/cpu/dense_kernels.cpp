// The functions of DenseKernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>. They
// must not use functions of the standard library: the linker keeps one copy of an inline function,
// which may be the copy for an instruction set that the CPU lacks.
#include <cstdint>

#include "engine/backend/cpu/lanes.hpp"
#include "engine/backend/cpu/simd.hpp"
#include "engine/edges/spline_basis.hpp"

namespace mdcg {
namespace {

#if defined(__AVX512F__)
constexpr int TILE_ROWS = 8, TILE_PANELS = 2;
#elif defined(__AVX__)
constexpr int TILE_ROWS = 6, TILE_PANELS = 1;
#else
constexpr int TILE_ROWS = 2, TILE_PANELS = 1;
#endif
constexpr int CHUNK_VECTORS = 64 / MDCG_VECTOR_BYTES;  // rows are padded to chunks of 64 bytes

// -- products ------------------------------------------------------------------------------------

// Multiplies R rows of a by P panels of b. Row i begins at a + at[i], and its result at c + ct[i].
template <typename T, int R, int P>
void tile(std::int64_t k, const T* a, const std::int64_t* at, const T* b, std::int64_t panel, T* c,
          const std::int64_t* ct, bool accumulate) {
    constexpr int W = CHUNK_VECTORS, A = W * lanes<T>;
    using V = Vector<T>;
    const T* rows[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) rows[i] = a + at[i];
    V sum[R][P * W];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < P * W; ++j) sum[i][j] = V{};
#pragma GCC unroll 2
    for (std::int64_t q = 0; q < k; ++q) {
        V column[P * W];
#pragma GCC unroll 8
        for (int j = 0; j < P * W; ++j)
            column[j] = load<V>(b + (j / W) * panel + q * A + (j % W) * lanes<T>);
#pragma GCC unroll 16
        for (int i = 0; i < R; ++i) {
            const T value = rows[i][q];
#pragma GCC unroll 8
            for (int j = 0; j < P * W; ++j) sum[i][j] += value * column[j];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < P * W; ++j) {
            T* target = c + ct[i] + (j / W) * A + (j % W) * lanes<T>;
            store(target, accumulate ? load<V>(target) + sum[i][j] : sum[i][j]);
        }
}

// Calls `tile` with `count` rows, 1 <= count <= R.
template <typename T, int R, int P>
void tile_of(std::int64_t count, std::int64_t k, const T* a, const std::int64_t* at, const T* b,
             std::int64_t panel, T* c, const std::int64_t* ct, bool accumulate) {
    if (count == R)
        tile<T, R, P>(k, a, at, b, panel, c, ct, accumulate);
    else if constexpr (R > 1)
        tile_of<T, R - 1, P>(count, k, a, at, b, panel, c, ct, accumulate);
}

template <typename T, int P>
void panels_of(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, const T* b,
               std::int64_t panel, T* c, std::int64_t ldc, const std::int32_t* rows,
               bool accumulate) {
    std::int64_t at[TILE_ROWS], ct[TILE_ROWS];
    for (std::int64_t i = 0; i < m;) {
        const std::int64_t left = m - i;
        std::int64_t count = left < TILE_ROWS ? left : TILE_ROWS;
        // two equal tiles are faster than a full one and a thin one
        if (left > TILE_ROWS && left < 2 * TILE_ROWS) count = (left + 1) / 2;
        for (std::int64_t j = 0; j < count; ++j) {
            const std::int64_t row = rows != nullptr ? rows[i + j] : i + j;
            at[j] = row * lda;
            ct[j] = row * ldc;
        }
        tile_of<T, TILE_ROWS, P>(count, k, a, at, b, panel, c, ct, accumulate);
        i += count;
    }
}

template <typename T>
void gemm_panels(std::int64_t m, std::int64_t k, std::int64_t panels, const T* a, std::int64_t lda,
                 const T* b, std::int64_t panel, T* c, std::int64_t ldc, const std::int32_t* rows,
                 bool accumulate) {
    constexpr int A = CHUNK_VECTORS * lanes<T>;
    std::int64_t p = 0;
    for (; p + TILE_PANELS <= panels; p += TILE_PANELS)
        panels_of<T, TILE_PANELS>(m, k, a, lda, b + p * panel, panel, c + p * A, ldc, rows,
                                  accumulate);
    for (; p < panels; ++p)
        panels_of<T, 1>(m, k, a, lda, b + p * panel, panel, c + p * A, ldc, rows, accumulate);
}

// -- functions -----------------------------------------------------------------------------------

template <typename T>
void activate_all(Activation kind, std::int64_t count, T factor, const T* x, T* y, T* dy) {
    using V = Vector<T>;
    V slope{};
    std::int64_t i = 0;
    for (; i + lanes<T> <= count; i += lanes<T>) {
        store(y + i, factor * activate<T>(kind, load<V>(x + i), slope));
        if (dy != nullptr) store(dy + i, factor * slope);
    }
    if (i == count) return;
    V rest{};
    for (std::int64_t j = i; j < count; ++j) rest[j - i] = x[j];
    rest = activate<T>(kind, rest, slope);
    for (std::int64_t j = i; j < count; ++j) {
        y[j] = factor * rest[j - i];
        if (dy != nullptr) dy[j] = factor * slope[j - i];
    }
}

template <typename T>
void add_scaled(std::int64_t count, T a, const T* x, T* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] += a * x[i];
}

template <typename T>
void scale(std::int64_t count, T a, const T* x, T* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = a * x[i];
}

template <typename T>
void multiply(std::int64_t count, const T* x, T* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] *= x[i];
}

// Values are sums over rows of the table, whose factors are differences of `basis`. In single
// precision a derivative would lose too many digits that way, so derivatives (and then values, too)
// are sums over `steps`.
template <typename T, bool SLOPES>
void look_up_edges(const TableLookUp<T> p) {
    using V = Vector<T>;
    constexpr bool STEPS = SLOPES && sizeof(T) == 4;
    constexpr int A = CHUNK_VECTORS * lanes<T>, COUNT = TABLE_STEPS<T>, TERMS = COUNT + !STEPS;
    for (std::int64_t e = 0; e < p.count; ++e) {
        const auto factor = [&](const T* sums, int j, T all) {
            const T own = j < COUNT ? sums[j * p.stride + e] : T(0);
            // NOTES: subtracting V{} broadcasts: compilers remove s - 0, but not s + 0
            return (STEPS ? own : (j > 0 ? sums[(j - 1) * p.stride + e] : all) - own) - V{};
        };
        V basis[TERMS], slope[TERMS];
#pragma GCC unroll 16
        for (int j = 0; j < TERMS; ++j) {
            basis[j] = factor(p.basis, j, T(1));
            if constexpr (SLOPES) slope[j] = factor(p.slope, j, T(0));
        }
        const std::int64_t first = p.knot[e];
#pragma GCC unroll 2
        for (std::int64_t panel = 0; panel < p.panels; ++panel) {
            const std::int64_t from = (panel * p.table_rows + first) * A;
            const T* const rows = p.table + from;
            const T* const terms = STEPS ? p.steps + from : rows;
#pragma GCC unroll 4
            for (int v = 0; v < A; v += lanes<T>) {
                V value = STEPS ? load<V>(rows + v) : V{}, change = V{};
#pragma GCC unroll 16
                for (int j = 0; j < TERMS; ++j) {
                    const V term = load<V>(terms + j * A + v);
                    value += basis[j] * term;
                    if constexpr (SLOPES) change += slope[j] * term;
                }
                const std::int64_t at = (e * p.panels + panel) * A + v;
                store(p.values + at, value);
                if constexpr (SLOPES) store(p.slopes + at, change);
            }
        }
    }
}

template <typename T>
void look_up(const TableLookUp<T>& p) {
    p.slopes != nullptr ? look_up_edges<T, true>(p) : look_up_edges<T, false>(p);
}

template <typename T>
T dot(std::int64_t count, const T* x, const T* y) {
    using V = Vector<T>;
    V sum = V{};
    std::int64_t i = 0;
    for (; i + lanes<T> <= count; i += lanes<T>) sum += load<V>(x + i) * load<V>(y + i);
    T total = 0;
    for (int j = 0; j < lanes<T>; ++j) total += sum[j];
    for (; i < count; ++i) total += x[i] * y[i];
    return total;
}

// -- polynomials ---------------------------------------------------------------------------------

template <typename T>
void contract(const Monomials<T>& m, const T* x, const T* coefficients, T* out) {
    using V = Vector<T>;
    constexpr int N = CHUNK_VECTORS;
    for (std::int64_t u = 0; u < m.stride; u += N * lanes<T>)
        for (std::int64_t q = 0; q < m.count; ++q) {
            V product[N];
            for (int i = 0; i < N; ++i)
                product[i] = load<V>(x + m.factor[m.factor_ptr[q]] + u + i * lanes<T>);
            for (std::int32_t f = m.factor_ptr[q] + 1; f < m.factor_ptr[q + 1]; ++f)
                for (int i = 0; i < N; ++i)
                    product[i] *= load<V>(x + m.factor[f] + u + i * lanes<T>);
            for (std::int32_t e = m.entry_ptr[q]; e < m.entry_ptr[q + 1]; ++e)
                for (int i = 0; i < N; ++i) {
                    T* to = out + m.out[e] + u + i * lanes<T>;
                    const V c = load<V>(coefficients + m.coefficient[e] + u + i * lanes<T>);
                    store(to, load<V>(to) + m.value[e] * c * product[i]);
                }
        }
}

template <typename T>
void contract_backward(const Monomials<T>& m, const T* x, const T* coefficients, const T* g,
                       T* dx) {
    using V = Vector<T>;
    constexpr int N = CHUNK_VECTORS;
    for (std::int64_t u = 0; u < m.stride; u += N * lanes<T>)
        for (std::int64_t q = 0; q < m.count; ++q) {
            V bar[N];
            for (int i = 0; i < N; ++i) bar[i] = V{};
            for (std::int32_t e = m.entry_ptr[q]; e < m.entry_ptr[q + 1]; ++e)
                for (int i = 0; i < N; ++i)
                    bar[i] += m.value[e] *
                              load<V>(coefficients + m.coefficient[e] + u + i * lanes<T>) *
                              load<V>(g + m.out[e] + u + i * lanes<T>);
            for (std::int32_t f = m.factor_ptr[q]; f < m.factor_ptr[q + 1]; ++f)
                for (int i = 0; i < N; ++i) {
                    V rest = bar[i];
                    for (std::int32_t h = m.factor_ptr[q]; h < m.factor_ptr[q + 1]; ++h)
                        if (h != f) rest *= load<V>(x + m.factor[h] + u + i * lanes<T>);
                    T* to = dx + m.factor[f] + u + i * lanes<T>;
                    store(to, load<V>(to) + rest);
                }
        }
}

}  // namespace

template <int level, typename T>
DenseKernels<T> dense_kernels() {
    return {&gemm_panels<T>, &activate_all<T>, &add_scaled<T>,
            &scale<T>,       &multiply<T>,     &look_up<T>,
            &dot<T>,         &contract<T>,     &contract_backward<T>};
}
template DenseKernels<float> dense_kernels<MDCG_SIMD_LEVEL, float>();
template DenseKernels<double> dense_kernels<MDCG_SIMD_LEVEL, double>();

}  // namespace mdcg
