"""Wigner 3j symbols in the real basis of e3nn, in float64.

They are computed in ``csrc/core/wigner_3j.cpp``, for problems, generated kernels and the engine
alike, so that a package cannot mean one thing to one of them and another thing to another.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import _core


@lru_cache(maxsize=4096)
def wigner_3j(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    r"""Return the real-basis 3j symbol :math:`w_{m_1 m_2 m_3}` with unit Frobenius norm.

    Parameters
    ----------
    l1, l2, l3 : int
        Degrees with ``|l1 - l2| <= l3 <= l1 + l2``, at most 16.

    Returns
    -------
    numpy.ndarray, shape (2*l1+1, 2*l2+1, 2*l3+1), float64
        Read-only. Signs are those of e3nn >= 0.5; e3nn 0.4 has the opposite sign for some triples
        with an odd sum of degrees.

    Raises
    ------
    ValueError
        The degrees violate the triangle inequality, or are too high.
    """
    symbol = _core.wigner_3j(l1, l2, l3)
    symbol.setflags(write=False)
    return symbol
