// The kernels behind DenseKernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>. No
// function of the standard library here: the linker would keep one copy of an inline function,
// perhaps that of the widest instruction set.
#include <cstdint>

#include "engine/backend/cpu/simd.hpp"

namespace mdcg {
namespace {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64, TILE_ROWS = 8, TILE_PANELS = 2;
#elif defined(__AVX__)
constexpr int VECTOR_BYTES = 32, TILE_ROWS = 6, TILE_PANELS = 1;
#else
constexpr int VECTOR_BYTES = 16, TILE_ROWS = 2, TILE_PANELS = 1;
#endif

template <typename T>
struct VectorOf;
template <>
struct VectorOf<float> {
    typedef float Type __attribute__((vector_size(VECTOR_BYTES), may_alias));
    typedef float Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(4)));
    typedef std::int32_t Bits __attribute__((vector_size(VECTOR_BYTES), may_alias));
    static constexpr int shift = 23;
    static constexpr float magic = 12582912.0f;  // 1.5 * 2^23
    static constexpr float low = -87.0f, high = 88.0f;
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723212e-6f;
    static constexpr int degree = 7;
};
template <>
struct VectorOf<double> {
    typedef double Type __attribute__((vector_size(VECTOR_BYTES), may_alias));
    typedef double Unaligned __attribute__((vector_size(VECTOR_BYTES), may_alias, aligned(8)));
    typedef std::int64_t Bits __attribute__((vector_size(VECTOR_BYTES), may_alias));
    static constexpr int shift = 52;
    static constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double low = -708.0, high = 709.0;
    static constexpr double ln2_high = 6.93145751953125e-1, ln2_low = 1.42860682030941723212e-6;
    static constexpr int degree = 13;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;
template <typename T>
constexpr int LANES = static_cast<int>(VECTOR_BYTES / sizeof(T));

template <typename T>
inline Vector<T> load(const T* p) {
    return *reinterpret_cast<const typename VectorOf<T>::Unaligned*>(p);
}
template <typename T>
inline void store(T* p, Vector<T> v) {
    *reinterpret_cast<typename VectorOf<T>::Unaligned*>(p) = v;
}

// -- products ------------------------------------------------------------------------------------

// R rows times P panels of b.
template <typename T, int R, int P>
void tile(std::int64_t k, const T* a, const std::int64_t* at, const T* b, std::int64_t panel, T* c,
          const std::int64_t* ct, bool accumulate) {
    constexpr int W = 64 / VECTOR_BYTES, A = static_cast<int>(64 / sizeof(T));
    typedef Vector<T> V;
    const T* rows[R];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i) rows[i] = a + at[i];
    V sum[R][P * W];
#pragma GCC unroll 16
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 8
        for (int j = 0; j < P * W; ++j) sum[i][j] = V{};
    for (std::int64_t q = 0; q < k; ++q) {
        V column[P * W];
#pragma GCC unroll 8
        for (int j = 0; j < P * W; ++j)
            column[j] =
                *reinterpret_cast<const V*>(b + (j / W) * panel + q * A + (j % W) * LANES<T>);
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
            V* target = reinterpret_cast<V*>(c + ct[i] + (j / W) * A + (j % W) * LANES<T>);
            *target = accumulate ? *target + sum[i][j] : sum[i][j];
        }
}

template <typename T, int P>
void panels_of(std::int64_t m, std::int64_t k, const T* a, std::int64_t lda, const T* b,
               std::int64_t panel, T* c, std::int64_t ldc, const std::int32_t* rows,
               bool accumulate) {
    std::int64_t at[TILE_ROWS], ct[TILE_ROWS];
    for (std::int64_t i = 0; i < m;) {
        const std::int64_t left = m - i;
        std::int64_t count = left < TILE_ROWS ? left : TILE_ROWS;
        // two halves rather than a full tile and a thin one
        if (left > TILE_ROWS && left < 2 * TILE_ROWS) count = (left + 1) / 2;
        for (std::int64_t j = 0; j < count; ++j) {
            const std::int64_t row = rows != nullptr ? rows[i + j] : i + j;
            at[j] = row * lda;
            ct[j] = row * ldc;
        }
        switch (count) {
            case 1:
                tile<T, 1, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
            case 2:
                tile<T, 2, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
#if defined(__AVX__)
            case 3:
                tile<T, 3, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
            case 4:
                tile<T, 4, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
            case 5:
                tile<T, 5, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
            case 6:
                tile<T, 6, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
#endif
#if defined(__AVX512F__)
            case 7:
                tile<T, 7, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
            case 8:
                tile<T, 8, P>(k, a, at, b, panel, c, ct, accumulate);
                break;
#endif
        }
        i += count;
    }
}

template <typename T>
void gemm_panels(std::int64_t m, std::int64_t k, std::int64_t panels, const T* a, std::int64_t lda,
                 const T* b, T* c, std::int64_t ldc, const std::int32_t* rows, bool accumulate) {
    constexpr int A = static_cast<int>(64 / sizeof(T));
    const std::int64_t panel = k * A;
    std::int64_t p = 0;
    for (; p + TILE_PANELS <= panels; p += TILE_PANELS)
        panels_of<T, TILE_PANELS>(m, k, a, lda, b + p * panel, panel, c + p * A, ldc, rows,
                                  accumulate);
    for (; p < panels; ++p)
        panels_of<T, 1>(m, k, a, lda, b + p * panel, panel, c + p * A, ldc, rows, accumulate);
}

// -- functions -----------------------------------------------------------------------------------

// e^x, clamped where it leaves the range; relative error of a few units in the last place.
template <typename T>
inline Vector<T> exponential(Vector<T> x) {
    typedef VectorOf<T> F;
    typedef Vector<T> V;
    typedef typename F::Bits B;
    x = x < F::low ? V{} + F::low : x;
    x = x > F::high ? V{} + F::high : x;
    const V t = x * T(1.44269504088896340736) + F::magic;
    const V n = t - F::magic;
    const V r = (x - n * F::ln2_high) - n * F::ln2_low;
    T factor = 1;
    for (int i = 2; i <= F::degree; ++i) factor /= T(i);
    V p = V{} + factor;
#pragma GCC unroll 16
    for (int i = F::degree; i > 0; --i) {
        factor *= T(i);
        p = p * r + factor;
    }
    return reinterpret_cast<V>(reinterpret_cast<B>(p) + (reinterpret_cast<B>(t) << F::shift));
}

template <typename T>
inline Vector<T> magnitude(Vector<T> x) {
    return x < T(0) ? -x : x;
}

template <typename T, Activation kind>
inline void apply(Vector<T> x, Vector<T>& y, Vector<T>& dy) {
    typedef Vector<T> V;
    if (kind == Activation::silu || kind == Activation::sigmoid) {
        const V s = T(1) / (T(1) + exponential<T>(-x));
        if (kind == Activation::silu) {
            y = x * s;
            dy = s * (T(1) + x * (T(1) - s));
        } else {
            y = s;
            dy = s * (T(1) - s);
        }
    } else if (kind == Activation::tanh) {
        const V e = exponential<T>(T(-2) * magnitude<T>(x));
        const V t = (T(1) - e) / (T(1) + e);
        y = x < T(0) ? -t : t;
        dy = T(4) * e / ((T(1) + e) * (T(1) + e));
    } else if (kind == Activation::relu) {
        y = x > T(0) ? x : V{};
        dy = x > T(0) ? V{} + T(1) : V{};
    } else if (kind == Activation::abs) {
        y = magnitude<T>(x);
        dy = x < T(0) ? V{} + T(-1) : (x > T(0) ? V{} + T(1) : V{});
    } else if (kind == Activation::ssp) {
        const V e = exponential<T>(-magnitude<T>(x));
        V log = V{};
        for (int i = 0; i < LANES<T>; ++i)
            log[i] = static_cast<T>(__builtin_log1p(static_cast<double>(e[i])));
        y = (x > T(0) ? x : V{}) + log - T(0.69314718055994530942);
        const V s = T(1) / (T(1) + e);
        dy = x > T(0) ? s : T(1) - s;
    } else {
        y = x;
        dy = V{} + T(1);
    }
}

template <typename T, Activation kind>
void activate_all(std::int64_t count, T factor, const T* x, T* y, T* dy) {
    typedef Vector<T> V;
    V f, d;
    std::int64_t i = 0;
    for (; i + LANES<T> <= count; i += LANES<T>) {
        apply<T, kind>(load(x + i), f, d);
        store<T>(y + i, factor * f);
        if (dy != nullptr) store<T>(dy + i, factor * d);
    }
    if (i == count) return;
    V rest = V{};
    for (std::int64_t j = i; j < count; ++j) rest[j - i] = x[j];
    apply<T, kind>(rest, f, d);
    for (std::int64_t j = i; j < count; ++j) {
        y[j] = factor * f[j - i];
        if (dy != nullptr) dy[j] = factor * d[j - i];
    }
}

template <typename T>
void activate(Activation kind, std::int64_t count, T factor, const T* x, T* y, T* dy) {
    switch (kind) {
        case Activation::silu:
            return activate_all<T, Activation::silu>(count, factor, x, y, dy);
        case Activation::tanh:
            return activate_all<T, Activation::tanh>(count, factor, x, y, dy);
        case Activation::sigmoid:
            return activate_all<T, Activation::sigmoid>(count, factor, x, y, dy);
        case Activation::relu:
            return activate_all<T, Activation::relu>(count, factor, x, y, dy);
        case Activation::abs:
            return activate_all<T, Activation::abs>(count, factor, x, y, dy);
        case Activation::ssp:
            return activate_all<T, Activation::ssp>(count, factor, x, y, dy);
        case Activation::none:
            return activate_all<T, Activation::none>(count, factor, x, y, dy);
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

template <typename T>
T dot(std::int64_t count, const T* x, const T* y) {
    typedef Vector<T> V;
    V sum = V{};
    std::int64_t i = 0;
    for (; i + LANES<T> <= count; i += LANES<T>) sum += load(x + i) * load(y + i);
    T total = 0;
    for (int j = 0; j < LANES<T>; ++j) total += sum[j];
    for (; i < count; ++i) total += x[i] * y[i];
    return total;
}

// -- polynomials ---------------------------------------------------------------------------------

template <typename T>
void contract(const Monomials<T>& m, const T* x, const T* coefficients, T* out) {
    typedef Vector<T> V;
    constexpr int N = static_cast<int>(64 / VECTOR_BYTES);
    for (std::int64_t u = 0; u < m.stride; u += static_cast<std::int64_t>(64 / sizeof(T)))
        for (std::int64_t q = 0; q < m.count; ++q) {
            V product[N];
            for (int i = 0; i < N; ++i)
                product[i] = load(x + m.factor[m.factor_ptr[q]] + u + i * LANES<T>);
            for (std::int32_t f = m.factor_ptr[q] + 1; f < m.factor_ptr[q + 1]; ++f)
                for (int i = 0; i < N; ++i) product[i] *= load(x + m.factor[f] + u + i * LANES<T>);
            for (std::int32_t e = m.entry_ptr[q]; e < m.entry_ptr[q + 1]; ++e)
                for (int i = 0; i < N; ++i) {
                    T* to = out + m.out[e] + u + i * LANES<T>;
                    const V c = load(coefficients + m.coefficient[e] + u + i * LANES<T>);
                    store<T>(to, load(to) + m.value[e] * c * product[i]);
                }
        }
}

template <typename T>
void contract_backward(const Monomials<T>& m, const T* x, const T* coefficients, const T* g,
                       T* dx) {
    typedef Vector<T> V;
    constexpr int N = static_cast<int>(64 / VECTOR_BYTES);
    for (std::int64_t u = 0; u < m.stride; u += static_cast<std::int64_t>(64 / sizeof(T)))
        for (std::int64_t q = 0; q < m.count; ++q) {
            V bar[N];
            for (int i = 0; i < N; ++i) bar[i] = V{};
            for (std::int32_t e = m.entry_ptr[q]; e < m.entry_ptr[q + 1]; ++e)
                for (int i = 0; i < N; ++i)
                    bar[i] += m.value[e] *
                              load(coefficients + m.coefficient[e] + u + i * LANES<T>) *
                              load(g + m.out[e] + u + i * LANES<T>);
            for (std::int32_t f = m.factor_ptr[q]; f < m.factor_ptr[q + 1]; ++f)
                for (int i = 0; i < N; ++i) {
                    V rest = bar[i];
                    for (std::int32_t h = m.factor_ptr[q]; h < m.factor_ptr[q + 1]; ++h)
                        if (h != f) rest *= load(x + m.factor[h] + u + i * LANES<T>);
                    T* to = dx + m.factor[f] + u + i * LANES<T>;
                    store<T>(to, load(to) + rest);
                }
        }
}

}  // namespace

template <int level, typename T>
DenseKernels<T> dense_kernels() {
    return {&gemm_panels<T>, &activate<T>, &add_scaled<T>, &scale<T>,
            &multiply<T>,    &dot<T>,      &contract<T>,   &contract_backward<T>};
}
template DenseKernels<float> dense_kernels<MDCG_SIMD_LEVEL, float>();
template DenseKernels<double> dense_kernels<MDCG_SIMD_LEVEL, double>();

}  // namespace mdcg
