r"""Wigner 3j symbols in the real basis of e3nn, in float64.

The SU(2) coefficients come from Racah's closed sum in exact rational arithmetic, so the only
rounding is one square root per coefficient and the change to real spherical harmonics.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import factorial, sqrt

import numpy as np
from numpy.typing import NDArray

# Smallest nonzero entry up to l = 11 is above 1e-4; what lies below this is rounding of an exact
# zero.
_ZERO = 1e-12


def _su2_clebsch_gordan(j1: int, m1: int, j2: int, m2: int, j3: int, m3: int) -> float:
    """Return <j1 m1 j2 m2 | j3 m3> by Racah's formula (Edmonds 1957, equation 3.6.11)."""
    prefactor = Fraction(
        (2 * j3 + 1)
        * factorial(j3 + j1 - j2)
        * factorial(j3 - j1 + j2)
        * factorial(j1 + j2 - j3)
        * factorial(j3 + m3)
        * factorial(j3 - m3)
        * factorial(j1 - m1)
        * factorial(j1 + m1)
        * factorial(j2 - m2)
        * factorial(j2 + m2),
        factorial(j1 + j2 + j3 + 1),
    )
    total = Fraction(0)
    for k in range(max(0, j2 - j3 - m1, j1 - j3 + m2), min(j1 + j2 - j3, j1 - m1, j2 + m2) + 1):
        denominator = (
            factorial(k)
            * factorial(j1 + j2 - j3 - k)
            * factorial(j1 - m1 - k)
            * factorial(j2 + m2 - k)
            * factorial(j3 - j2 + m1 + k)
            * factorial(j3 - j1 - m2 + k)
        )
        total += Fraction((-1) ** k, denominator)
    magnitude = sqrt(prefactor * total * total)
    return magnitude if total > 0 else -magnitude


def _complex_parts(degree: int, component: int) -> tuple[tuple[int, complex], ...]:
    """Return (m, factor) of the complex harmonics in a real one, norm 2^(-1/2) of m != 0 left out.

    Times (-i)^l, so that 3j symbols are real.
    """
    phase: complex = (1, -1j, -1, 1j)[degree % 4]
    m = abs(component)
    sign = (-1) ** m
    if m == 0:
        return ((0, phase),)
    if component > 0:
        return ((-m, phase), (m, sign * phase))
    return ((-m, -1j * phase), (m, 1j * sign * phase))


@lru_cache(maxsize=4096)
def wigner_3j(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    r"""Return the real-basis 3j symbol :math:`w_{m_1 m_2 m_3}` with unit Frobenius norm.

    Parameters
    ----------
    l1, l2, l3 : int
        Degrees with ``|l1 - l2| <= l3 <= l1 + l2``.

    Returns
    -------
    numpy.ndarray, shape (2*l1+1, 2*l2+1, 2*l3+1), float64
        Read-only. Signs are those of e3nn >= 0.5; e3nn 0.4 has the opposite sign for some triples
        with an odd sum of degrees.

    Raises
    ------
    ValueError
        The degrees violate the triangle inequality.
    """
    if not abs(l1 - l2) <= l3 <= l1 + l2 or min(l1, l2, l3) < 0:
        raise ValueError(f"degrees ({l1}, {l2}, {l3}) violate |l1 - l2| <= l3 <= l1 + l2")
    cg = {
        (m1, m2): _su2_clebsch_gordan(l1, m1, l2, m2, l3, m1 + m2)
        for m1 in range(-l1, l1 + 1)
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1)
    }
    # This order of sums, and nothing of BLAS: the same bits, hence kernels, on every machine.
    norms = (1.0, sqrt(0.5), 0.5, sqrt(0.5) * 0.5)
    real = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for a, b, c in np.ndindex(real.shape):
        at = (a - l1, b - l2, c - l3)
        total = 0.0
        for (m1, p1), (m2, p2), (m3, p3) in product(*map(_complex_parts, (l1, l2, l3), at)):
            if m1 + m2 == m3:
                total += (p1 * p2 * p3.conjugate()).real * cg[m1, m2]
        value = total * norms[sum(m != 0 for m in at)] / sqrt(2 * l3 + 1)
        if abs(value) > _ZERO:
            real[a, b, c] = value
    real.setflags(write=False)
    return real
