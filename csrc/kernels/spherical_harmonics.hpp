// Spherical harmonics of unit vectors u = (x, y, z) in e3nn's basis, whose axis is y:
//     Y_{l,+-m} = factor * P_l^(m)(y) * {Re, Im}(z + i x)^m,
// where P_l^(m) is the m-th derivative of the Legendre polynomial. They are written once for hosts
// and devices; V is a number or a vector of numbers. Harmonic (l, m) has the number l^2 + l + m.
#pragma once

#include "kernels/types.hpp"

namespace mdcg {

// Replaces polynomial l - 1 of order m (`before`) and l by l and l + 1.
template <typename T, typename V>
MDCG_HD void next_legendre(int l, int m, V y, V& before, V& legendre) {
    const V next = (y * legendre * T(2 * l + 1) - before * T(l + m)) * (T(1) / T(l + 1 - m));
    before = legendre;
    legendre = next;
}

// Calls put(number, harmonic) for all harmonics, which are multiplied by `scale`.
template <typename T, typename V, typename Put>
MDCG_HD void spherical_harmonics(int l_max, const T* factors, const V* u, V scale, const Put& put) {
    const V x = u[0], y = u[1], z = u[2];
    V re = scale, im{};
    V diagonal = V{} + T(1);  // (2m-1)!!
    MDCG_UNROLL
    for (int m = 0; m <= l_max; ++m) {
        V before{}, legendre = diagonal;
        MDCG_UNROLL
        for (int l = m; l <= l_max; ++l) {
            const int i = l * l + l;
            put(i + m, legendre * factors[i + m] * re);
            if (m > 0) put(i - m, legendre * factors[i - m] * im);
            next_legendre<T>(l, m, y, before, legendre);
        }
        const V re_next = re * z - im * x;
        im = im * z + re * x;
        re = re_next;
        diagonal = diagonal * T(2 * m + 1);
    }
}

// gradient = sum_i d(i) dY_i/du, where d(i) is the gradient of harmonic i. The component
// along the unit vector is not meaningful.
template <typename T, typename V, typename Load, typename G>
MDCG_HD void harmonics_gradient(int l_max, const T* factors, const V* u, const Load& d,
                                G* gradient) {
    const V x = u[0], y = u[1], z = u[2];
    V re = V{} + T(1), im{};     // (z + i x)^m
    V re_before{}, im_before{};  // (z + i x)^(m-1)
    V diagonal = V{} + T(1);
    V gx{}, gy{}, gz{};
    MDCG_UNROLL
    for (int m = 0; m <= l_max; ++m) {
        V before{}, legendre = diagonal;
        V real{}, imaginary{}, axis_real{}, axis_imaginary{};
        MDCG_UNROLL
        for (int l = m; l <= l_max; ++l) {
            const int i = l * l + l;
            if (m > 0) {
                real += d(i + m) * factors[i + m] * legendre;
                imaginary += d(i - m) * factors[i - m] * legendre;
                // the derivative of P^(m-1) is P^(m)
                axis_real += d(i + m - 1) * factors[i + m - 1] * legendre;
                if (m > 1) axis_imaginary += d(i - m + 1) * factors[i - m + 1] * legendre;
            }
            next_legendre<T>(l, m, y, before, legendre);
        }
        gz += (real * re_before + imaginary * im_before) * T(m);
        gx += (imaginary * re_before - real * im_before) * T(m);
        gy += axis_real * re_before + axis_imaginary * im_before;
        re_before = re;
        im_before = im;
        re = re_before * z - im_before * x;
        im = im_before * z + re_before * x;
        diagonal = diagonal * T(2 * m + 1);
    }
    gradient[0] = G(gx);
    gradient[1] = G(gy);
    gradient[2] = G(gz);
}

}  // namespace mdcg
