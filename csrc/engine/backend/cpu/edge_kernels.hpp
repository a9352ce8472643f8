// Kernels of the edge layers that are not generated, compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace mdcg {

enum class BasisKind { bessel, gaussian, chebyshev };
enum class TransformKind { none, agnesi, soft };

// The radial basis, its transform and its cutoff; see radial.hpp for the formulas.
struct BasisFunctions {
    BasisKind kind = BasisKind::bessel;
    int count = 0;
    const double* values = nullptr;  // [count] weights (bessel), centers (gaussian)
    double factor = 1;               // prefactor (bessel), coefficient (gaussian)
    bool normalized = false;         // argument is r / r_max instead of r
    TransformKind transform = TransformKind::none;
    double a = 0, p = 0, q = 0;  // agnesi; soft: a = alpha
    double cutoff_power = 0;     // polynomial cutoff; 0: none
    double cutoff_start = 0;     // xplor cutoff, Å: where it begins to fall; 0: none
    bool cutoff_on_basis = true;
};

// A block of edges.
struct BasisInput {
    std::int64_t edges;    // a multiple of 16
    const double* length;  // [edges] Å
    const double* r_max;   // [edges] Å
    const double* r_0;     // [edges] length scale of the transform; null without transform
};

// One path of a convolution for the generic kernel.
struct GenericPath {
    std::int32_t x_offset, x_stride, x_dim;        // block of x: x_dim components of x_stride items
    std::int32_t out_offset, out_stride, out_dim;  // block of out
    std::int32_t harmonic, harmonic_dim;           // first row of the harmonics, and their number
    std::int32_t mul, stride;                      // number of weights, and the same padded
    std::int32_t pair_begin, pair_end;             // its pairs
};
// Components a of x and c of out for which at least one w3j[a, b, c] is not zero.
struct GenericPair {
    std::int32_t a, c;
    std::int32_t term_begin, term_end;  // its nonzeros
};
// A nonzero w3j[a, b, c].
template <typename T>
struct GenericTerm {
    std::int32_t b;
    T value;
};

template <typename T>
struct EdgeKernels {
    // Writes the spherical harmonics out [(l_max+1)^2][edges] of unit vectors [3][edges]. factors
    // [(l_max+1)^2] are those of harmonic_factors(). `edges`: a multiple of 16.
    void (*harmonics)(int l_max, const T* factors, std::int64_t edges, const T* unit, T* out);
    // Writes gradient [3][edges] = sum_lm d[lm] dY_lm/d(unit), where d is [(l_max+1)^2][edges]. Its
    // component along the unit vector is meaningless.
    void (*harmonics_gradient)(int l_max, const T* factors, std::int64_t edges, const T* unit,
                               const T* d, T* gradient);

    // Writes values and slopes [edges][stride]: the basis functions, times the cutoff if it is on
    // the basis, and their derivatives by the length. Writes cutoff and cutoff_slope [edges], which
    // are 0 for lengths of r_max or more.
    void (*basis)(const BasisFunctions& functions, const BasisInput& input, std::int64_t stride,
                  T* values, T* slopes, double* cutoff, double* cutoff_slope);

    // Values and slopes of the B-splines at positions [edges], 0 to 1, within an interval, in the
    // form that multiplies differences of coefficients. With TABLE_STEPS<T> = degree,
    //     basis[j] [edges] = `within` * (the sum of the B-splines j + 1 to degree),
    //     slope[j] [edges] = `by_length` * (the B-spline j of degree - 1).
    // Rows j are `stride` items apart; `edges`: a multiple of 16.
    void (*splines)(std::int64_t edges, const double* position, const double* within,
                    const double* by_length, std::int64_t stride, T* basis, T* slope);

    // Normalises the first `count` items of rows values [rows][stride] to mean 0 and variance 1,
    // then multiplies by weight [stride] and adds bias [stride]. Writes what the gradient needs:
    // normalised [rows][stride] (without weight and bias) and scale [rows] (1 / deviation).
    void (*layer_norm)(std::int64_t rows, std::int64_t count, std::int64_t stride, T epsilon,
                       const T* weight, const T* bias, T* values, T* normalised, T* scale);
    void (*layer_norm_gradient)(std::int64_t rows, std::int64_t count, std::int64_t stride,
                                const T* weight, const T* normalised, const T* scale, T* d);

    // Adds the message of one edge on one path to the row `out` of its receiver. coefficients
    // [pairs of the path] are the sums over b of w3j[a, b, c] times harmonic b; weights are
    // [stride], x the row of its sender.
    void (*conv_forward)(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                         const T* weights, const T* x, T* out);
    // Writes the gradients d_weights [stride] and d_coefficients [pairs of the path], and adds to
    // dx, a row like x, unless it is null. g is the gradient of `out`.
    void (*conv_backward)(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                          const T* weights, const T* x, const T* g, T* d_weights, T* dx,
                          T* d_coefficients);
};

// The kernels compiled for x86-64-v<level>; simd() chooses the level.
template <int level, typename T>
EdgeKernels<T> edge_kernels();

}  // namespace mdcg
