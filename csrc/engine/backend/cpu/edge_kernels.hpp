// Small fixed kernels of the edge layers, compiled for several instruction sets.
#pragma once

#include <cstdint>

namespace mdcg {

enum class BasisKind { bessel, gaussian, chebyshev };
enum class TransformKind { none, agnesi, soft };

// The functions of the length alone, in double; see radial.hpp for the formulas.
struct BasisFunctions {
    BasisKind kind = BasisKind::bessel;
    int count = 0;
    const double* values = nullptr;  // [count] weights (bessel), centers (gaussian)
    double factor = 1;               // prefactor (bessel), coefficient (gaussian)
    bool normalized = false;         // argument is r / r_max instead of r
    TransformKind transform = TransformKind::none;
    double a = 0, p = 0, q = 0;  // agnesi; soft: a = alpha
    double cutoff_power = 0;     // 0: no cutoff function
    bool cutoff_on_basis = true;
};

// A block of edges; arrays hold `edges` items, a multiple of 16.
struct BasisInput {
    std::int64_t edges;
    const double* length;
    const double* r_max;
    const double* r_0;  // scale of the transform for the edge's types; null without transform
};

// One path of a convolution for the generic kernel.
struct GenericPath {
    std::int32_t x_offset, x_stride, x_dim;        // block of x: components of x_stride items
    std::int32_t out_offset, out_stride, out_dim;  // block of out
    std::int32_t harmonic, harmonic_dim;           // first row of harmonics
    std::int32_t mul, stride;                      // columns of weights
    std::int32_t pair_begin, pair_end;             // (a, c) pairs with any nonzero
};
struct GenericPair {
    std::int32_t a, c;
    std::int32_t term_begin, term_end;  // its nonzeros
};
template <typename T>
struct GenericTerm {
    std::int32_t b;
    T value;
};

template <typename T>
struct EdgeKernels {
    // out[(l_max+1)^2][edges] of unit vectors [3][edges]; factors [(l_max+1)^2] as
    // harmonic_factors() makes them. `edges`: a multiple of 16.
    void (*harmonics)(int l_max, const T* factors, std::int64_t edges, const T* unit, T* out);
    // gradient[3][edges] = sum_lm d[lm] dY_lm/d(unit), written; its part along the unit vector is
    // without meaning.
    void (*harmonics_gradient)(int l_max, const T* factors, std::int64_t edges, const T* unit,
                               const T* d, T* gradient);

    // values, slopes [edges][stride]: basis functions, times the cutoff where it is on the basis,
    // and derivatives with respect to the length; cutoff, cutoff_slope [edges]: 0 from r_max on.
    void (*basis)(const BasisFunctions& functions, const BasisInput& input, std::int64_t stride,
                  T* values, T* slopes, double* cutoff, double* cutoff_slope);

    // What look-ups in splines of degree `steps` need of edges that stand at `place`, 0 to 1, of an
    // interval: basis[j], the sum of the B-splines j + 1 to `steps`, times `within`, and slope[j],
    // the B-spline j of one degree less, times `by_length`. Rows are `stride` apart; `edges`: a
    // multiple of 16.
    void (*splines)(std::int64_t edges, const double* place, const double* within,
                    const double* by_length, std::int64_t stride, T* basis, T* slope);

    // Rows [rows][stride], the first `count` items of each used: normalised to mean 0, variance
    // 1, times weight plus bias [stride]. normalised (before weight and bias) and scale
    // (1/deviation) are kept for the gradient.
    void (*layer_norm)(std::int64_t rows, std::int64_t count, std::int64_t stride, T epsilon,
                       const T* weight, const T* bias, T* values, T* normalised, T* scale);
    void (*layer_norm_gradient)(std::int64_t rows, std::int64_t count, std::int64_t stride,
                                const T* weight, const T* normalised, const T* scale, T* d);

    // coefficients [pairs of the path] = sum of values times harmonics (column e of [lm][edges]).
    // out row += message of one edge on one path; weights [stride].
    void (*conv_forward)(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                         const T* weights, const T* x, T* out);
    // d_weights [stride] written, dx (may be null) added to, d_coefficients [pairs] written.
    void (*conv_backward)(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                          const T* weights, const T* x, const T* g, T* d_weights, T* dx,
                          T* d_coefficients);
};

// Compiled for x86-64-v<level>; see simd() for those to use.
template <int level, typename T>
EdgeKernels<T> edge_kernels();

}  // namespace mdcg
