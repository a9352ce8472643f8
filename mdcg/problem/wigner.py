"""Wigner 3j symbols in the real basis of e3nn, in float64.

They are computed in ``csrc/core/wigner_3j.cpp`` for problems, generated kernels and the engine, so
that a package means the same to all of them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import _core


@lru_cache(maxsize=4096)
def wigner_3j(l1: int, l2: int, l3: int) -> NDArray[np.float64]:
    """Return the real-basis 3j symbol [2*l1+1, 2*l2+1, 2*l3+1] with unit norm, read-only.

    Degrees are at most 16. Signs are those of e3nn >= 0.5; e3nn 0.4 has the opposite sign for some
    triples with an odd sum of degrees.
    """
    symbol = _core.wigner_3j(l1, l2, l3)
    symbol.setflags(write=False)
    return symbol
