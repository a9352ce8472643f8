"""Second derivatives of the energy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from ase import Atoms


def hessian(
    atoms: Atoms, step: float, dtype: str, batch: Callable[..., list[dict[str, Any]]]
) -> npt.NDArray[np.float64]:
    """Return the matrix of :meth:`MDCGCalculator.get_hessian`; its `batch` gives the forces."""
    if dtype != "float64":
        raise ValueError(
            f"the Hessian needs a model in float64, got {dtype}: convert the checkpoint with "
            "--dtype float64"
        )
    if not 0.0 < step < 0.1:
        raise ValueError(f"step is {step}, expected a length over 0 and below 0.1 Å")
    images = []
    for atom, axis, sign in np.ndindex(len(atoms), 3, 2):
        image = atoms.copy()
        image.positions[atom, axis] += step if sign == 0 else -step
        images.append(image)
    size = 3 * len(atoms)
    found = batch(images, ["forces"])
    forces = np.array([each["forces"] for each in found]).reshape(size, 2, size)
    rows = (forces[:, 1] - forces[:, 0]) / (2.0 * step)
    return np.asarray(0.5 * (rows + rows.T))
