// Vectors of the instruction set that a file is compiled for, and their elementary functions. All
// names are local to a file: include this only in files that are compiled once per instruction set.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/types.hpp"

#if defined(__clang__)
#pragma clang fp contract(fast)
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=fast")
#endif

#if defined(__AVX512F__)
#define MDCG_VECTOR_BYTES 64
#elif defined(__AVX__)
#define MDCG_VECTOR_BYTES 32
#else
#define MDCG_VECTOR_BYTES 16
#endif

namespace mdcg {
namespace {

typedef float FloatVector __attribute__((vector_size(MDCG_VECTOR_BYTES)));
typedef float HalfVector __attribute__((vector_size(MDCG_VECTOR_BYTES / 2)));
typedef double DoubleVector __attribute__((vector_size(MDCG_VECTOR_BYTES)));
typedef std::int32_t Int32Vector __attribute__((vector_size(MDCG_VECTOR_BYTES)));
typedef std::int64_t Int64Vector __attribute__((vector_size(MDCG_VECTOR_BYTES)));

template <typename T>
using Vector = std::conditional_t<sizeof(T) == 4, FloatVector, DoubleVector>;
template <typename T>
using Integers = std::conditional_t<sizeof(T) == 4, Int32Vector, Int64Vector>;

template <typename T>
constexpr int lanes = static_cast<int>(MDCG_VECTOR_BYTES / sizeof(T));

// The element type of a vector.
template <typename V>
using Item = std::conditional_t<std::is_same_v<V, FloatVector>, float, double>;

template <typename V>
inline V load(const Item<V>* from) {
    V value;
    __builtin_memcpy(&value, from, sizeof(V));
    return value;
}

template <typename V>
inline void store(Item<V>* to, V value) {
    __builtin_memcpy(to, &value, sizeof(V));
}

// Stores doubles, rounded if the target is narrower.
inline void store_as(double* to, DoubleVector value) {
    __builtin_memcpy(to, &value, sizeof(value));
}
inline void store_as(float* to, DoubleVector value) {
    const HalfVector narrow = __builtin_convertvector(value, HalfVector);
    __builtin_memcpy(to, &narrow, sizeof(narrow));
}

template <typename V>
inline V smaller(V a, V b) {
    return a < b ? a : b;
}
template <typename V>
inline V larger(V a, V b) {
    return a > b ? a : b;
}

template <typename V>
inline Item<V> sum(V v) {
    Item<V> total = 0;
    for (unsigned i = 0; i < sizeof(V) / sizeof(Item<V>); ++i) total += v[i];
    return total;
}

// Adding and subtracting this number rounds to integers: no bits of the sum are left for a
// fraction.
template <typename T>
constexpr T rounder = sizeof(T) == 4 ? T(12582912) : T(6755399441055744);  // 1.5 * 2^23, 1.5 * 2^52

// Cody-Waite reduction and a Taylor series on |r| <= log(2)/2; the error is about one unit in the
// last place.
inline DoubleVector exponential(DoubleVector x) {
    x = larger(smaller(x, DoubleVector{} + 709.0), DoubleVector{} - 708.0);
    const DoubleVector shifted = x * 1.4426950408889634 + rounder<double>;
    const DoubleVector n = shifted - rounder<double>;
    DoubleVector r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    DoubleVector p = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * (r * r) + r;
    p = p + 1.0;
    return (DoubleVector)((Int64Vector)p + ((Int64Vector)shifted << 52));
}

// A Taylor series of degree 7; relative error of a few units in the last place.
inline FloatVector exponential(FloatVector x) {
    x = larger(smaller(x, FloatVector{} + 88.0f), FloatVector{} - 87.0f);
    const FloatVector shifted = x * 1.44269504088896340736f + rounder<float>;
    const FloatVector n = shifted - rounder<float>;
    const FloatVector r = (x - n * 6.93145751953125e-1f) - n * 1.42860682030941723212e-6f;
    FloatVector p = r * (1.0f / 5040.0f) + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return (FloatVector)((Int32Vector)p + ((Int32Vector)shifted << 23));
}

inline DoubleVector square_root(DoubleVector v) {
#if defined(__AVX512F__)
    return (DoubleVector)_mm512_sqrt_pd((__m512d)v);
#elif defined(__AVX__)
    return (DoubleVector)_mm256_sqrt_pd((__m256d)v);
#elif defined(__SSE2__)
    return (DoubleVector)_mm_sqrt_pd((__m128d)v);
#else
    for (int i = 0; i < lanes<double>; ++i) v[i] = __builtin_sqrt(v[i]);
    return v;
#endif
}

// Natural logarithm of positive normal numbers, by 2 atanh((m-1)/(m+1)) of the mantissa m.
inline DoubleVector logarithm(DoubleVector x) {
    const Int64Vector bits = (Int64Vector)x;
    Int64Vector exponent = (bits >> 52) - 1023;
    DoubleVector m = (DoubleVector)((bits & 0x000fffffffffffffLL) | 0x3ff0000000000000LL);
    const Int64Vector big = m > 1.4142135623730951;
    m = big ? m * 0.5 : m;
    exponent = exponent - big;  // a true comparison is -1
    const DoubleVector e =
        (DoubleVector)(exponent + (Int64Vector)(DoubleVector{} + rounder<double>)) -
        rounder<double>;
    const DoubleVector z = (m - 1.0) / (m + 1.0);
    const DoubleVector z2 = z * z;
    DoubleVector p = z2 * (2.0 / 23) + 2.0 / 21;
    p = p * z2 + 2.0 / 19;
    p = p * z2 + 2.0 / 17;
    p = p * z2 + 2.0 / 15;
    p = p * z2 + 2.0 / 13;
    p = p * z2 + 2.0 / 11;
    p = p * z2 + 2.0 / 9;
    p = p * z2 + 2.0 / 7;
    p = p * z2 + 2.0 / 5;
    p = p * z2 + 2.0 / 3;
    p = p * (z2 * z) + 2.0 * z;
    return e * 6.93147180369123816490e-01 + (e * 1.90821492927058770002e-10 + p);
}

template <typename V>
inline V log_of_1_plus(V x) {
    for (int i = 0; i < lanes<Item<V>>; ++i)
        x[i] = static_cast<Item<V>>(__builtin_log1p(static_cast<double>(x[i])));
    return x;
}

inline DoubleVector power(DoubleVector x, double p) { return exponential(logarithm(x) * p); }

// For |x| below about 1e5.
inline void sine_cosine(DoubleVector x, DoubleVector& sine, DoubleVector& cosine) {
    const DoubleVector shifted = x * 0.63661977236758134 + rounder<double>;
    const DoubleVector n = shifted - rounder<double>;
    DoubleVector r = x - n * 1.57079632673412561417e+00;
    r = r - n * 6.07710050630396597660e-11;
    r = r - n * 2.02226624879595063154e-21;
    const DoubleVector r2 = r * r;
    DoubleVector s = r2 * (1.0 / 355687428096000.0) - 1.0 / 1307674368000.0;
    s = s * r2 + 1.0 / 6227020800.0;
    s = s * r2 - 1.0 / 39916800.0;
    s = s * r2 + 1.0 / 362880.0;
    s = s * r2 - 1.0 / 5040.0;
    s = s * r2 + 1.0 / 120.0;
    s = s * r2 - 1.0 / 6.0;
    s = s * (r2 * r) + r;
    DoubleVector c = r2 * (1.0 / 20922789888000.0) - 1.0 / 87178291200.0;
    c = c * r2 + 1.0 / 479001600.0;
    c = c * r2 - 1.0 / 3628800.0;
    c = c * r2 + 1.0 / 40320.0;
    c = c * r2 - 1.0 / 720.0;
    c = c * r2 + 1.0 / 24.0;
    c = c * r2 - 0.5;
    c = c * r2 + 1.0;
    const Int64Vector quadrant = (Int64Vector)shifted;
    const Int64Vector odd = (quadrant & 1) != 0;
    const Int64Vector negative_sine = (quadrant & 2) << 62;
    const Int64Vector negative_cosine = ((quadrant + 1) & 2) << 62;
    sine = (DoubleVector)((Int64Vector)(odd ? c : s) ^ negative_sine);
    cosine = (DoubleVector)((Int64Vector)(odd ? s : c) ^ negative_cosine);
}

inline DoubleVector hyperbolic_tangent(DoubleVector x) {
    return 1.0 - 2.0 / (exponential(x + x) + 1.0);
}

}  // namespace
}  // namespace mdcg
