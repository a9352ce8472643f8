"""Small structures of a model's elements, on which two models are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Structure:
    """Atoms in a cell.

    Parameters
    ----------
    name : str
        Shown in tables.
    atomic_numbers : array of int, shape (n_nodes,)
    positions : array, shape (n_nodes, 3)
        Å.
    cell : array, shape (3, 3)
        Rows are lattice vectors, Å; zero if there are none.
    pbc : tuple of three bool
    """

    name: str
    atomic_numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: tuple[bool, bool, bool]

    @property
    def periodic(self) -> bool:
        """Whether any direction is periodic."""
        return any(self.pbc)


def verification_systems(
    elements: Sequence[int], r_max: float, *, seed: int = 2024
) -> tuple[Structure, ...]:
    """Return five structures: cubic, triclinic, slab, smaller than the cutoff, and a molecule.

    Parameters
    ----------
    elements : sequence of int
        Atomic numbers to draw from.
    r_max : float
        Cutoff in Å; sets the spacing of the atoms such that all have neighbours.
    seed : int
        Seed of the random numbers.
    """
    rng = np.random.default_rng(seed)
    spacing = float(np.clip(0.55 * r_max, 1.2, 2.3))
    skew = np.array([[1.0, 0.0, 0.0], [0.35, 0.95, 0.0], [-0.25, 0.3, 1.05]])

    def numbers(count: int) -> NDArray[np.int64]:
        shuffled = rng.permutation(np.asarray(elements, dtype=np.int64))
        return np.resize(shuffled, count)  # every element occurs once before any occurs twice

    def lattice(*repeats: int) -> NDArray[np.float64]:
        grid = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), axis=-1)
        points = grid.reshape(-1, 3) * spacing
        return points + rng.uniform(-0.12, 0.12, points.shape) * spacing

    def box(*repeats: int) -> NDArray[np.float64]:
        return np.diag(np.asarray(repeats, dtype=np.float64) * spacing)

    cubic = Structure("cubic", numbers(27), lattice(3, 3, 3), box(3, 3, 3), (True, True, True))
    # atoms outside the cell and left-handed cell vectors are allowed
    triclinic = Structure(
        "triclinic",
        numbers(18),
        lattice(2, 3, 3) @ skew + spacing * np.array([0.0, -4.3, 1.7]),
        (box(2, 3, 3) @ skew)[[1, 0, 2]],
        (True, True, True),
    )
    slab = Structure("slab", numbers(12), lattice(3, 2, 2), box(3, 2, 8), (True, True, False))
    images = Structure(
        "self-images", numbers(2), lattice(2, 1, 1), box(2, 1, 1), (True, True, True)
    )
    atoms = lattice(2, 2, 2)
    lonely = atoms.max(axis=0) + 3.0 * r_max  # one atom without neighbours
    molecule = Structure(
        "molecule",
        numbers(9),
        np.vstack([atoms, lonely]),
        np.zeros((3, 3)),
        (False, False, False),
    )
    return cubic, triclinic, slab, images, molecule
