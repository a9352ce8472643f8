// What the instructions of inline PTX do; translate.cpp turns their text into these calls.
#pragma once

namespace emulated_ptx {

// The address of an operand in brackets: a pointer, or an address of shared memory.
template <class V>
char* address(V* p) {
    return reinterpret_cast<char*>(const_cast<std::remove_const_t<V>*>(p));
}
inline char* address(unsigned p) { return emulation::shared_pointer(p); }

template <class T, class... V>
void red_add(T* to, V... values) {
    if (reinterpret_cast<uintptr_t>(to) % (sizeof(T) * sizeof...(V)) != 0)
        emulation::cuda().fail("misaligned access");
    ((*to++ += values), ...);
}
template <class A, class B>
void copy(A to, B from, int size, int bytes) {
    emulation::cuda().copy(address(to), address(from), size, bytes);
}
inline void commit() { emulation::cuda().commit(); }
inline void wait_copies(int groups) { emulation::cuda().wait_copies(groups); }

// To the nearest number with 10 bits behind the point; halves away from zero, or to even.
inline void to_tf32(unsigned& to, float x) { to = (__float_as_uint(x) + 0x1000u) & 0xffffe000u; }
inline void to_tf32_even(unsigned& to, float x) {
    const unsigned bits = __float_as_uint(x);
    to = x != x ? bits : (bits + 0xfffu + (bits >> 13 & 1)) & 0xffffe000u;
}

// D = A B + C of a warp, [M][K] [K][N], from fragments as PTX describes them. Sums in double.
template <int K, class T, class F>
void multiply(T (&d)[4], const F& fragment, const T (&c)[4]) {
    const emulation::Exchanged<F> all(~0u, emulation::kMatrix, fragment);
    const int group = int(emulation::lane()) / 4, place = int(emulation::lane()) % 4;
    for (int i = 0; i < F::kResults; ++i) {
        const int row = group + (i / 2) * 8, column = place * 2 + i % 2;
        double sum = 0;
        for (int k = 0; k < K; ++k)
            sum += double(all.of(unsigned(row % 8 * 4 + k % 4)).a(row, k)) *
                   double(all.of(unsigned(column * 4 + k % 4)).b(k));
        d[i] = T(sum + double(c[i]));
    }
}
// m8n8k4, double
struct DoubleFragment {
    static constexpr int kResults = 2;
    double left, right;
    double a(int, int) const { return left; }
    double b(int) const { return right; }
};
inline void mma_f64(double& d0, double& d1, double a, double b, double c0, double c1) {
    double d[4];
    const double c[4] = {c0, c1, 0, 0};
    multiply<4>(d, DoubleFragment{a, b}, c);
    d0 = d[0], d1 = d[1];
}
// m16n8k8, double
struct LongDoubleFragment {
    static constexpr int kResults = 4;
    double left[4], right[2];
    double a(int row, int k) const { return left[row / 8 + k / 4 * 2]; }
    double b(int k) const { return right[k / 4]; }
};
inline void mma_f64_16(double& d0, double& d1, double& d2, double& d3, double a0, double a1,
                       double a2, double a3, double b0, double b1, double c0, double c1, double c2,
                       double c3) {
    double d[4];
    const double c[4] = {c0, c1, c2, c3};
    multiply<8>(d, LongDoubleFragment{{a0, a1, a2, a3}, {b0, b1}}, c);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
// m16n8k8, tf32
struct Tf32Fragment {
    static constexpr int kResults = 4;
    unsigned left[4], right[2];
    static float value(unsigned bits) { return __uint_as_float(bits & 0xffffe000u); }
    float a(int row, int k) const { return value(left[row / 8 + k / 4 * 2]); }
    float b(int k) const { return value(right[k / 4]); }
};
inline void mma_tf32(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1,
                     unsigned a2, unsigned a3, unsigned b0, unsigned b1, float c0, float c1,
                     float c2, float c3) {
    float d[4];
    const float c[4] = {c0, c1, c2, c3};
    multiply<8>(d, Tf32Fragment{{a0, a1, a2, a3}, {b0, b1}}, c);
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
// A warp's part of m64n64k8, tf32. A PTX descriptor locates B in shared memory, without swizzling:
// core matrices of eight columns by four items of the shared dimension.
struct SharedTf32 {
    char* start;
    unsigned items, columns;  // bytes to the next core matrix along both
    explicit SharedTf32(unsigned long long descriptor)
        : start(address(unsigned(descriptor & 0x3fff) * 16)),
          items(unsigned(descriptor >> 16 & 0x3fff) * 16),
          columns(unsigned(descriptor >> 32 & 0x3fff) * 16) {
        if (descriptor >> 62 != 0) emulation::cuda().fail("swizzled operand that is not emulated");
    }
    float at(int k, int column) const {
        char* const core = start + k / 4 * items + column / 8 * columns;
        return Tf32Fragment::value(reinterpret_cast<unsigned*>(core)[column % 8 * 4 + k % 4]);
    }
};
struct Tf32Rows {
    unsigned left[4];
};
inline void wgmma(float* const (&d)[32], const Tf32Rows& rows, unsigned long long descriptor,
                  bool add) {
    const emulation::Exchanged<Tf32Rows> all(~0u, emulation::kMatrix, rows);
    const SharedTf32 b(descriptor);
    const int group = int(emulation::lane()) / 4, place = int(emulation::lane()) % 4;
    for (int i = 0; i < 32; ++i) {
        const int column = i / 4 * 8 + place * 2 + i % 2;
        double sum = 0;
        for (int k = 0; k < 8; ++k) {
            const Tf32Rows row = all.of(unsigned(group * 4 + k % 4));
            sum += double(Tf32Fragment::value(row.left[i % 4 / 2 + k / 4 * 2])) *
                   double(b.at(k, column));
        }
        *d[i] = float(sum + (add ? double(*d[i]) : 0));
    }
}
template <class All, size_t... I>
void wgmma_operands(const All& all, std::index_sequence<I...>) {
    float* const d[32] = {&std::get<I>(all)...};
    const Tf32Rows rows{
        {std::get<32>(all), std::get<33>(all), std::get<34>(all), std::get<35>(all)}};
    wgmma(d, rows, std::get<36>(all), std::get<37>(all) != 0);
}
// 32 results, 4 items of the rows, a descriptor, whether to add, and two signs
template <class... V>
void wgmma_tf32(V&&... operands) {
    static_assert(sizeof...(V) == 40, "operands");
    const auto signs = std::forward_as_tuple(operands...);
    if (std::get<38>(signs) != 1 || std::get<39>(signs) != 1)
        emulation::cuda().fail("a sign of wgmma that is not emulated");
    wgmma_operands(std::forward_as_tuple(operands...), std::make_index_sequence<32>());
}

}  // namespace emulated_ptx
