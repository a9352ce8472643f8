// Arithmetic of CUDA C++ that host headers lack. Approximate functions are exact here.
#pragma once

template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

inline float rsqrtf(float x) { return float(1 / sqrt(double(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float rcbrtf(float x) { return 1 / cbrtf(x); }
inline double rcbrt(double x) { return 1 / cbrt(x); }
inline float sinpif(float x) { return float(sin(M_PI * fmod(double(x), 2.0))); }
inline double sinpi(double x) { return sin(M_PI * fmod(x, 2.0)); }
inline float cospif(float x) { return float(cos(M_PI * fmod(double(x), 2.0))); }
inline double cospi(double x) { return cos(M_PI * fmod(x, 2.0)); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
inline float norm3df(float a, float b, float c) {
    return float(sqrt(double(a) * a + double(b) * b + double(c) * c));
}
inline double norm3d(double a, double b, double c) { return sqrt(a * a + b * b + c * c); }
inline float rnorm3df(float a, float b, float c) { return 1 / norm3df(a, b, c); }
inline double rnorm3d(double a, double b, double c) { return 1 / norm3d(a, b, c); }
inline float rhypotf(float a, float b) { return 1 / hypotf(a, b); }
inline double rhypot(double a, double b) { return 1 / hypot(a, b); }
inline float fdividef(float a, float b) { return a / b; }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return float(exp10(double(x))); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline void __sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1 / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1 / a; }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

#define EMULATION_BITS(NAME, FROM, TO)          \
    inline TO NAME(FROM value) {                \
        TO result;                              \
        memcpy(&result, &value, sizeof result); \
        return result;                          \
    }
EMULATION_BITS(__float_as_int, float, int)
EMULATION_BITS(__float_as_uint, float, unsigned)
EMULATION_BITS(__int_as_float, int, float)
EMULATION_BITS(__uint_as_float, unsigned, float)
EMULATION_BITS(__double_as_longlong, double, long long)
EMULATION_BITS(__longlong_as_double, long long, double)
#undef EMULATION_BITS
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)(unsigned long long)high << 32 | unsigned(low));
}

// Conversions, which saturate on the device; nan gives 0.
namespace emulation {
template <class I, class F>
I to_integer(F x) {
    constexpr F kLow = std::is_signed_v<I> ? -F(1ull << (8 * sizeof(I) - 1)) : F(0);
    constexpr F kHigh = F(1ull << (8 * sizeof(I) - 1)) * (std::is_signed_v<I> ? 1 : 2);
    constexpr I kMost = std::is_signed_v<I> ? I(~(1ull << (8 * sizeof(I) - 1))) : I(~0ull);
    if (x != x) return 0;
    return x <= kLow ? I(kLow) : x >= kHigh ? kMost : I(x);
}
}  // namespace emulation
#define EMULATION_CONVERT(FROM, TO, F, I)                                             \
    inline I __##FROM##2##TO##_rn(F x) { return emulation::to_integer<I>(rint(x)); }  \
    inline I __##FROM##2##TO##_rz(F x) { return emulation::to_integer<I>(trunc(x)); } \
    inline I __##FROM##2##TO##_rd(F x) { return emulation::to_integer<I>(floor(x)); } \
    inline I __##FROM##2##TO##_ru(F x) { return emulation::to_integer<I>(ceil(x)); }  \
    inline F __##TO##2##FROM##_rn(I x) { return F(x); }
EMULATION_CONVERT(float, int, float, int)
EMULATION_CONVERT(float, uint, float, unsigned)
EMULATION_CONVERT(float, ll, float, long long)
EMULATION_CONVERT(float, ull, float, unsigned long long)
EMULATION_CONVERT(double, int, double, int)
EMULATION_CONVERT(double, uint, double, unsigned)
EMULATION_CONVERT(double, ll, double, long long)
EMULATION_CONVERT(double, ull, double, unsigned long long)
#undef EMULATION_CONVERT
inline float __double2float_rn(double x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)x); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
    return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return unsigned((unsigned long long)a * b >> 32);
}
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline int __mul24(int a, int b) { return a * b; }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return unsigned((((unsigned long long)high << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return unsigned(((unsigned long long)high << 32 | low) >> (by & 31));
}

inline long long emulated_clock() {
    static long long ticks = 0;
    return ++ticks;
}
#define clock emulated_clock
#define clock64 emulated_clock
