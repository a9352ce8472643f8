// T and L_MAX are defined before; L_MAX is -1 where only lengths matter. Rows of harmonics have
// (L_MAX + 1)^2 items.
#pragma once

// Harmonics of a unit vector u in e3nn's basis, whose axis is y, times `scale`:
//     Y_{l,+-m} = factor * P_l^(m)(y) * {Re, Im}(z + i x)^m,
// where P_l^(m) is the m-th derivative of the Legendre polynomial.
static __device__ __forceinline__ void scaled_harmonics(const T* factors, const T* u, T scale,
                                                        T* row) {
    const T x = u[0], y = u[1], z = u[2];
    T re = scale, im = 0;
    T diagonal = 1;  // (2m-1)!!
#pragma unroll
    for (int m = 0; m <= L_MAX; ++m) {
        T before = 0, legendre = diagonal;
#pragma unroll
        for (int l = m; l <= L_MAX; ++l) {
            const int i = l * l + l;
            row[i + m] = legendre * factors[i + m] * re;
            if (m > 0) row[i - m] = legendre * factors[i - m] * im;
            const T next =
                (y * legendre * T(2 * l + 1) - before * T(l + m)) * (T(1) / T(l + 1 - m));
            before = legendre;
            legendre = next;
        }
        const T re_next = re * z - im * x;
        im = im * z + re * x;
        re = re_next;
        diagonal = diagonal * T(2 * m + 1);
    }
}

// sum_lm d[lm] dY_lm/d(unit). The component along the unit vector is not meaningful.
template <typename G>
static __device__ __forceinline__ void harmonics_gradient(const T* factors, const T* u, const T* d,
                                                          G* gradient) {
    const T x = u[0], y = u[1], z = u[2];
    T re = 1, im = 0;                // (z + i x)^m
    T re_before = 0, im_before = 0;  // (z + i x)^(m-1)
    T diagonal = 1;
    T gx = 0, gy = 0, gz = 0;
#pragma unroll
    for (int m = 0; m <= L_MAX; ++m) {
        T before = 0, legendre = diagonal;
        T real = 0, imaginary = 0, axis_real = 0, axis_imaginary = 0;
#pragma unroll
        for (int l = m; l <= L_MAX; ++l) {
            const int i = l * l + l;
            if (m > 0) {
                real += d[i + m] * factors[i + m] * legendre;
                imaginary += d[i - m] * factors[i - m] * legendre;
                // the derivative of P^(m-1) is P^(m)
                axis_real += d[i + m - 1] * factors[i + m - 1] * legendre;
                if (m > 1) axis_imaginary += d[i - m + 1] * factors[i - m + 1] * legendre;
            }
            const T next =
                (y * legendre * T(2 * l + 1) - before * T(l + m)) * (T(1) / T(l + 1 - m));
            before = legendre;
            legendre = next;
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
