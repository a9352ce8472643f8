"""Structures that the benchmarks evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.io import read
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

# The first seed whose 5,184-atom box has 436,904 edges at 6 Å, as many as the box of published
# GPU timings.
_WATER_SEED = 103
_WATER_GRID = 3.1036  # Å between molecules: 1.0 g/cm³
_WATER_BOND, _WATER_ANGLE = 0.9572, 104.52  # Å, degrees: the experimental gas-phase molecule
DEFAULT_ATOMS = {"water": 192, "carbon": 1000, "iron": 686}
_CELL_ATOMS = {"water": 3, "carbon": 8, "iron": 2}


def make_system(name: str, atoms: int | None = None) -> Atoms:
    """Make a periodic structure by name, or read the first frame of a file.

    `atoms` is 3 n³ for water, 8 n³ for carbon (diamond) and 2 n³ for iron (bcc); files have their
    own number. Other names and numbers raise `ValueError`.
    """
    if name not in DEFAULT_ATOMS:
        if atoms is not None:
            raise ValueError(f"atoms is {atoms}, but {name} has its own number: leave --atoms out")
        if not Path(name).is_file():
            raise ValueError(
                f"system {name!r} is neither water, carbon, iron nor a file: check the path"
            )
        return read_structure(name, index=0)
    count, each = atoms or DEFAULT_ATOMS[name], _CELL_ATOMS[name]
    n_side = max(1, round((count / each) ** (1 / 3)))
    if each * n_side**3 != count:
        sizes = ", ".join(str(each * n**3) for n in range(max(1, n_side - 1), n_side + 2))
        raise ValueError(f"no {name} box has {count} atoms, expected {each} n³: try {sizes}")
    if name == "water":
        return water_box(n_side)
    lattice = ("C", "diamond", 3.567) if name == "carbon" else ("Fe", "bcc", 2.866)
    cell = bulk(lattice[0], lattice[1], a=lattice[2], cubic=True)
    return cast(Atoms, cell.repeat(n_side))


def read_structure(name: str, index: int) -> Atoms:
    """Read one frame of a file; every failure is a ``ValueError``."""
    try:
        return cast(Atoms, read(name, index=index, do_not_split_by_at_sign=True))
    except Exception as error:  # every reader of ASE raises its own errors
        raise ValueError(
            f"{name} cannot be read as a structure ({type(error).__name__}: {error}): "
            "expected a file that ASE reads, such as .xyz or .cif"
        ) from error


def water_box(n_side: int) -> Atoms:
    """Put ``n_side**3`` rigid water molecules of random orientation on a cubic grid of 3.1036 Å."""
    count = n_side**3
    rotations = _rotations(np.random.default_rng(_WATER_SEED).random((count, 3)))
    half = np.deg2rad(_WATER_ANGLE) / 2
    hydrogen = _WATER_BOND * np.array([np.sin(half), 0.0, np.cos(half)])
    molecule = np.stack([np.zeros(3), hydrogen, hydrogen * [-1.0, 1.0, 1.0]])
    sites = (np.indices((n_side,) * 3).reshape(3, -1).T + 0.5) * _WATER_GRID
    positions = sites[:, None] + np.einsum("nij,aj->nai", rotations, molecule)
    side = n_side * _WATER_GRID
    return Atoms([8, 1, 1] * count, positions.reshape(-1, 3), cell=[side] * 3, pbc=True)


def _rotations(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn uniform numbers, shape (n, 3), into uniform rotations (Shoemake's quaternions)."""
    a, b = 2 * np.pi * u[:, 1], 2 * np.pi * u[:, 2]
    near, far = np.sqrt(1 - u[:, 0]), np.sqrt(u[:, 0])
    parts = [near * np.sin(a), near * np.cos(a), far * np.sin(b), far * np.cos(b)]
    return cast("NDArray[np.float64]", Rotation.from_quat(np.stack(parts, axis=1)).as_matrix())
