"""Cells that lists of neighbours must take, shorter and longer than a cutoff of 3.7 Å."""

from __future__ import annotations

import numpy as np

CELLS = {
    "cubic": np.diag([8.0, 8.0, 8.0]),
    "triclinic": np.array([[8.0, 0.0, 0.0], [3.0, 7.0, 0.0], [-2.0, 3.0, 6.0]]),
    "left-handed": np.array([[8.0, 0.0, 0.0], [3.0, 7.0, 0.0], [-2.0, 3.0, -6.0]]),
    "very skewed": np.array([[8.0, 0.0, 0.0], [30.0, 7.0, 0.0], [-20.0, 33.0, 6.0]]),
    "smaller than the cutoff": np.array([[2.1, 0.0, 0.0], [0.4, 2.2, 0.0], [0.0, 0.3, 2.3]]),
    "thin": np.array([[0.31, 0.0, 0.0], [0.1, 9.0, 0.0], [0.0, 0.0, 11.0]]),
}
PBC = [(1, 1, 1), (1, 1, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 0, 0)]
