r"""Wigner 3j symbols in the real basis of e3nn, in float64.

The SU(2) coefficients come from Racah's closed sum in exact rational arithmetic, so the only
rounding is one square root per coefficient and the change to real spherical harmonics.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import factorial, sqrt

import numpy as np
from numpy.typing import NDArray

__all__ = ["wigner_3j"]

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


def _real_to_complex(degree: int) -> NDArray[np.complex128]:
    """Return q with Y_complex = (i)^l q Y_real; the phase makes 3j symbols real."""
    q = np.zeros((2 * degree + 1, 2 * degree + 1), dtype=np.complex128)
    half = 1 / sqrt(2)
    q[degree, degree] = 1
    for m in range(1, degree + 1):
        sign = (-1) ** m
        q[degree - m, degree + m] = half
        q[degree - m, degree - m] = -1j * half
        q[degree + m, degree + m] = sign * half
        q[degree + m, degree - m] = 1j * sign * half
    phase: complex = (1, -1j, -1, 1j)[degree % 4]
    return phase * q


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
    cg = np.zeros((2 * l1 + 1, 2 * l2 + 1, 2 * l3 + 1))
    for m1 in range(-l1, l1 + 1):
        for m2 in range(max(-l2, -l3 - m1), min(l2, l3 - m1) + 1):
            cg[l1 + m1, l2 + m2, l3 + m1 + m2] = _su2_clebsch_gordan(l1, m1, l2, m2, l3, m1 + m2)
    q1, q2, q3 = _real_to_complex(l1), _real_to_complex(l2), _real_to_complex(l3)
    out = np.einsum("ia,jb,kc,ijk->abc", q1, q2, q3.conj(), cg, optimize=True)
    real = np.ascontiguousarray(out.real)
    real[np.abs(real) < _ZERO] = 0.0
    real /= np.linalg.norm(real)
    real.setflags(write=False)
    return real
