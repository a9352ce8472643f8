"""Second derivatives of the energy, as differences of forces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from ase import Atoms

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]


def hessian(
    atoms: Atoms,
    step: float,
    indices: Sequence[int] | npt.NDArray[np.integer[Any]] | None,
    dtype: str,
    batch: Callable[..., list[dict[str, Any]]],
) -> FloatArray:
    """Return the matrix of :meth:`MDCGCalculator.get_hessian`; `batch` evaluates images."""
    if dtype != "float64":
        raise ValueError(
            f"the Hessian needs a model in float64, got {dtype}: give MDCGCalculator "
            "dtype='float64', or convert the checkpoint of a package with --dtype float64"
        )
    if not 0.0 < step < 0.1:
        raise ValueError(f"step is {step}, expected a length over 0 and below 0.1 Å")
    chosen = _chosen(indices, len(atoms))
    images = []
    for atom, axis, sign in np.ndindex(len(chosen), 3, 2):
        image = atoms.copy()
        image.positions[chosen[atom], axis] += step if sign == 0 else -step
        images.append(image)
    size = 3 * len(chosen)
    found = batch(images, ["forces"])
    forces = np.array([each["forces"] for each in found]).reshape(size, 2, 3 * len(atoms))
    rows = (forces[:, 1] - forces[:, 0]) / (2.0 * step)
    columns = (3 * chosen[:, None] + np.arange(3)).ravel()
    block = rows[:, columns]
    rows[:, columns] = 0.5 * (block + block.T)
    return np.asarray(rows)


def _chosen(indices: Any, count: int) -> IntArray:
    """Return the numbers of the atoms that are displaced."""
    if indices is None:
        return np.arange(count)
    found = np.asarray(indices)
    whole = found.dtype.kind in "iu" or found.size == 0
    if found.ndim != 1 or not whole or len(set(found.tolist())) < len(found):
        raise ValueError(
            f"indices is {indices!r}, expected different whole numbers of atoms, such as [0, 5]"
        )
    outside = found[(found < 0) | (found >= count)]
    if len(outside):
        raise ValueError(
            f"indices has {outside[0]}, expected numbers from 0 to {count - 1} ({count} atoms)"
        )
    return found.astype(np.int64)
