// The edge kernels, compiled once per instruction set, x86-64-v<MDCG_SIMD_LEVEL>.
#include "engine/backend/cpu/edge_kernels.hpp"

#include "engine/backend/cpu/lanes.hpp"
#include "engine/edges/spline_basis.hpp"
#include "kernels/radial_functions.hpp"
#include "kernels/spherical_harmonics.hpp"

namespace mdcg {
namespace {

template <typename T>
void harmonics(int l_max, const T* factors, std::int64_t edges, const T* unit, T* out) {
    using V = Vector<T>;
    for (std::int64_t e = 0; e < edges; e += lanes<T>) {
        const V u[] = {load<V>(unit + e), load<V>(unit + edges + e), load<V>(unit + 2 * edges + e)};
        spherical_harmonics(l_max, factors, u, V{} + T(1),
                            [&](int i, V value) { store(out + i * edges + e, value); });
    }
}

template <typename T>
void harmonics_gradient(int l_max, const T* factors, std::int64_t edges, const T* unit, const T* d,
                        T* gradient) {
    using V = Vector<T>;
    for (std::int64_t e = 0; e < edges; e += lanes<T>) {
        const V u[] = {load<V>(unit + e), load<V>(unit + edges + e), load<V>(unit + 2 * edges + e)};
        V sum[3];
        mdcg::harmonics_gradient(
            l_max, factors, u, [&](int i) { return load<V>(d + i * edges + e); }, sum);
        for (int k = 0; k < 3; ++k) store(gradient + k * edges + e, sum[k]);
    }
}

template <typename T>
inline void scatter(T* to, std::int64_t stride, DoubleVector value) {
    T items[lanes<double>];
    store_as(items, value);
    for (int i = 0; i < lanes<double>; ++i) to[i * stride] = items[i];
}

template <typename T>
void basis(const BasisFunctions& f, const BasisInput& in, std::int64_t stride, T* values, T* slopes,
           double* cutoff, double* cutoff_slope) {
    using V = DoubleVector;
    const int whole = whole_power(f.cutoff_power);
    for (std::int64_t e = 0; e < in.edges; e += lanes<double>) {
        const V r = load<V>(in.length + e), inverse = 1.0 / load<V>(in.r_max + e);
        V cut = V{} + 1.0, cut_slope = V{};
        if (f.cutoff_power != 0)
            polynomial_cutoff(f.cutoff_power, whole, r * inverse, cut, cut_slope);
        else if (f.cutoff_start != 0)
            xplor_cutoff(f.cutoff_start * inverse, r * inverse, cut, cut_slope);
        cut = r * inverse < 1.0 ? cut : V{};
        cut_slope = r * inverse < 1.0 ? cut_slope * inverse : V{};
        store(cutoff + e, cut);
        store(cutoff_slope + e, cut_slope);
        V x = r, x_slope = V{} + 1.0;
        if (f.transform == TransformKind::agnesi) {
            agnesi_transform(f.a, f.p, f.q, r, load<V>(in.r_0 + e), x, x_slope);
        } else if (f.transform == TransformKind::soft) {
            soft_transform(f.a, r, load<V>(in.r_0 + e), x, x_slope);
        } else if (f.normalized) {
            x = r * inverse;
            x_slope = inverse;
        }
        const V factor = f.cutoff_on_basis ? cut : V{} + 1.0;
        const V factor_slope = f.cutoff_on_basis ? cut_slope : V{};
        const V one_over_x = 1.0 / x;
        Chebyshev<V> polynomial{x};
        for (int k = 0; k < f.count; ++k) {
            V value, slope;
            if (f.kind == BasisKind::bessel) {
                V sine, cosine;
                sine_cosine(x * f.values[k], sine, cosine);
                value = f.factor * sine * one_over_x;
                slope = (f.factor * f.values[k] * cosine - value) * one_over_x;
            } else if (f.kind == BasisKind::gaussian) {
                gaussian(f.factor, f.values[k], x, value, slope);
            } else {
                value = polynomial.value;
                slope = polynomial.slope;
                polynomial.advance(x);
            }
            scatter(values + e * stride + k, stride, value * factor);
            scatter(slopes + e * stride + k, stride,
                    slope * x_slope * factor + value * factor_slope);
        }
    }
}

template <typename T>
void layer_norm(std::int64_t rows, std::int64_t count, std::int64_t stride, T epsilon,
                const T* weight, const T* bias, T* values, T* normalised, T* scale) {
    using V = Vector<T>;
    const std::int64_t whole = count / lanes<T> * lanes<T>;
    for (std::int64_t i = 0; i < rows; ++i) {
        T* row = values + i * stride;
        T* kept = normalised + i * stride;
        V total = V{};
        for (std::int64_t k = 0; k < whole; k += lanes<T>) total += load<V>(row + k);
        T mean = sum(total);
        for (std::int64_t k = whole; k < count; ++k) mean += row[k];
        mean /= static_cast<T>(count);
        V squares = V{};
        for (std::int64_t k = 0; k < whole; k += lanes<T>) {
            const V d = load<V>(row + k) - mean;
            squares += d * d;
        }
        T variance = sum(squares);
        for (std::int64_t k = whole; k < count; ++k) variance += (row[k] - mean) * (row[k] - mean);
        variance = variance / static_cast<T>(count) + epsilon;
        const T inverse =
            T(1) / (sizeof(T) == 4 ? static_cast<T>(__builtin_sqrtf(static_cast<float>(variance)))
                                   : static_cast<T>(__builtin_sqrt(static_cast<double>(variance))));
        scale[i] = inverse;
        for (std::int64_t k = 0; k < stride; k += lanes<T>) {
            const V n = (load<V>(row + k) - mean) * inverse;
            store(kept + k, n);
            store(row + k, n * load<V>(weight + k) + load<V>(bias + k));  // both zero in padding
        }
        for (std::int64_t k = count; k < stride; ++k) kept[k] = T(0);
    }
}

template <typename T>
void layer_norm_gradient(std::int64_t rows, std::int64_t count, std::int64_t stride,
                         const T* weight, const T* normalised, const T* scale, T* d) {
    using V = Vector<T>;
    for (std::int64_t i = 0; i < rows; ++i) {
        T* row = d + i * stride;
        const T* n = normalised + i * stride;
        V total = V{}, product = V{};
        for (std::int64_t k = 0; k < stride; k += lanes<T>) {
            const V g = load<V>(row + k) * load<V>(weight + k);
            store(row + k, g);
            total += g;
            product += g * load<V>(n + k);
        }
        const T mean = sum(total) / static_cast<T>(count);
        const T slope = sum(product) / static_cast<T>(count);
        for (std::int64_t k = 0; k < stride; k += lanes<T>)
            store(row + k, (load<V>(row + k) - mean - load<V>(n + k) * slope) * scale[i]);
        for (std::int64_t k = count; k < stride; ++k) row[k] = T(0);
    }
}

template <typename T>
void conv_forward(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                  const T* weights, const T* x, T* out) {
    using V = Vector<T>;
    for (std::int32_t u = 0; u < path.stride; u += lanes<T>) {
        const V w = load<V>(weights + u);
        for (std::int32_t i = path.pair_begin; i < path.pair_end; ++i) {
            T* to = out + path.out_offset + pairs[i].c * path.out_stride + u;
            const V from = load<V>(x + path.x_offset + pairs[i].a * path.x_stride + u);
            store(to, load<V>(to) + from * w * coefficients[i - path.pair_begin]);
        }
    }
}

template <typename T>
void conv_backward(const GenericPath& path, const GenericPair* pairs, const T* coefficients,
                   const T* weights, const T* x, const T* g, T* d_weights, T* dx,
                   T* d_coefficients) {
    using V = Vector<T>;
    const std::int32_t count = path.pair_end - path.pair_begin;
    for (std::int32_t i = 0; i < count; ++i) {
        const GenericPair& pair = pairs[path.pair_begin + i];
        const std::int64_t a = path.x_offset + pair.a * path.x_stride;
        const std::int64_t c = path.out_offset + pair.c * path.out_stride;
        const T coefficient = coefficients[i];
        V total = V{};
        for (std::int32_t u = 0; u < path.stride; u += lanes<T>) {
            const V w = load<V>(weights + u), xa = load<V>(x + a + u), gc = load<V>(g + c + u);
            const V xg = xa * gc;
            total += xg * w;
            const V before = i == 0 ? V{} : load<V>(d_weights + u);
            store(d_weights + u, before + xg * coefficient);
            if (dx != nullptr) store(dx + a + u, load<V>(dx + a + u) + gc * w * coefficient);
        }
        d_coefficients[i] = sum(total);
    }
}

template <typename T>
void splines(std::int64_t edges, const double* position, const double* within,
             const double* by_length, std::int64_t stride, T* basis, T* slope) {
    constexpr int STEPS = TABLE_STEPS<T>;
    for (std::int64_t e = 0; e < edges; e += lanes<double>) {
        const auto t = load<DoubleVector>(position + e);
        const auto scale = load<DoubleVector>(by_length + e);
        DoubleVector found[STEPS + 1];
        basis_at(STEPS - 1, t, found);
        for (int j = 0; j < STEPS; ++j) store_as(slope + j * stride + e, found[j] * scale);
        raise_degree(STEPS, t, found);
        auto sum = DoubleVector{};
        for (int j = STEPS - 1; j >= 0; --j) {
            sum += found[j + 1];
            store_as(basis + j * stride + e, sum * load<DoubleVector>(within + e));
        }
    }
}

}  // namespace

template <int level, typename T>
EdgeKernels<T> edge_kernels() {
    return {&harmonics<T>,  &harmonics_gradient<T>,  &basis<T>,        &splines<T>,
            &layer_norm<T>, &layer_norm_gradient<T>, &conv_forward<T>, &conv_backward<T>};
}
template EdgeKernels<float> edge_kernels<MDCG_SIMD_LEVEL, float>();
template EdgeKernels<double> edge_kernels<MDCG_SIMD_LEVEL, double>();

}  // namespace mdcg
