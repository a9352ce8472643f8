"""Atomic systems made by formula, and their neighbour graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependencyError

__all__ = [
    "DEFAULT_ATOMS",
    "ORDERS",
    "EdgeList",
    "System",
    "carbon_lattice",
    "fragment",
    "iron_lattice",
    "make_system",
    "neighbours",
    "water_box",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The first seed whose 5,184-atom box has 436,904 edges at 6 Å, as many as the box of the GPU
# timings that this benchmark is compared with.
WATER_SEED = 103
_WATER_GRID = 3.1036  # Å between molecules: 1.0 g/cm³
_WATER_BOND, _WATER_ANGLE = 0.9572, 104.52  # Å, degrees: the experimental gas-phase molecule
_DIAMOND = 3.567  # Å
_IRON = 2.866  # Å
DEFAULT_ATOMS = {"water": 192, "carbon": 1000, "iron": 686}
ORDERS = ("receiver", "sender", "random")


@dataclass(frozen=True)
class System:
    """Atoms in a cell.

    Parameters
    ----------
    name : str
        For tables.
    numbers : numpy.ndarray, shape (n_atoms,), int64
        Atomic numbers.
    positions : numpy.ndarray, shape (n_atoms, 3)
        In Å.
    cell : numpy.ndarray, shape (3, 3)
        Rows are the lattice vectors, in Å.
    periodic : tuple of bool
        Per lattice vector.
    """

    name: str
    numbers: Ints
    positions: Floats
    cell: Floats
    periodic: tuple[bool, bool, bool] = (True, True, True)

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True)
class EdgeList:
    """Directed edges within a cutoff; both directions of every pair.

    Parameters
    ----------
    sender, receiver : numpy.ndarray, shape (n_edges,), int64
        A message goes from `sender` to `receiver`.
    shifts : numpy.ndarray, shape (n_edges, 3), int64
        Cell shift S: the edge vector is ``positions[receiver] - positions[sender] + S @ cell``.
    """

    sender: Ints
    receiver: Ints
    shifts: Ints

    def __len__(self) -> int:
        return len(self.sender)


def water_box(n_side: int, seed: int = WATER_SEED) -> System:
    """Put ``n_side**3`` rigid water molecules of random orientation on a cubic grid of 3.1036 Å."""
    count = n_side**3
    u = np.random.default_rng(seed).random((count, 3))
    half = np.deg2rad(_WATER_ANGLE) / 2
    hydrogen = _WATER_BOND * np.array([np.sin(half), 0.0, np.cos(half)])
    molecule = np.stack([np.zeros(3), hydrogen, hydrogen * [-1.0, 1.0, 1.0]])
    sites = (np.indices((n_side,) * 3).reshape(3, -1).T + 0.5) * _WATER_GRID
    positions = sites[:, None] + np.einsum("nij,aj->nai", _rotations(u), molecule)
    return System(
        name="water",
        numbers=np.tile(np.array([8, 1, 1], dtype=np.int64), count),
        positions=positions.reshape(-1, 3),
        cell=np.eye(3) * n_side * _WATER_GRID,
    )


def _rotations(u: Floats) -> Floats:
    """Turn uniform numbers, shape (n, 3), into uniform rotations (Shoemake's quaternions)."""
    a, b = 2 * np.pi * u[:, 1], 2 * np.pi * u[:, 2]
    x, y = np.sqrt(1 - u[:, 0]) * np.sin(a), np.sqrt(1 - u[:, 0]) * np.cos(a)
    z, w = np.sqrt(u[:, 0]) * np.sin(b), np.sqrt(u[:, 0]) * np.cos(b)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), 2, 0)


def carbon_lattice(n_side: int) -> System:
    """Repeat the cubic diamond cell (8 atoms, 3.567 Å) ``n_side`` times in each direction."""
    face = np.array([[0, 0, 0], [0, 1, 1], [1, 0, 1], [1, 1, 0]]) / 2
    basis = np.concatenate([face, face + 0.25])
    sites = np.indices((n_side,) * 3).reshape(3, -1).T
    positions = (sites[:, None] + basis).reshape(-1, 3) * _DIAMOND
    return System(
        name="carbon",
        numbers=np.full(len(positions), 6, dtype=np.int64),
        positions=positions,
        cell=np.eye(3) * n_side * _DIAMOND,
    )


def iron_lattice(n_side: int) -> System:
    """Repeat the body-centred cubic cell (2 atoms, 2.866 Å) ``n_side`` times in each direction."""
    sites = np.indices((n_side,) * 3).reshape(3, -1).T
    positions = (sites[:, None] + np.array([[0.0] * 3, [0.5] * 3])).reshape(-1, 3) * _IRON
    return System(
        name="iron",
        numbers=np.full(len(positions), 26, dtype=np.int64),
        positions=positions,
        cell=np.eye(3) * n_side * _IRON,
    )


_SITES = {"water": (water_box, 3), "carbon": (carbon_lattice, 8), "iron": (iron_lattice, 2)}


def make_system(name: str, atoms: int | None = None) -> System:
    """Make a system by name, or read a structure file.

    Parameters
    ----------
    name : str
        ``"water"``, ``"carbon"``, ``"iron"`` or a file that ASE reads (its first frame).
    atoms : int, optional
        3 n³ for water, 8 n³ for carbon, 2 n³ for iron; not for files.

    Raises
    ------
    ValueError
        No box has that many atoms, `atoms` was given for a file, or the file does not exist.
    """
    if name not in DEFAULT_ATOMS:
        if atoms is not None:
            raise ValueError(f"atoms is {atoms}, but {name} has its own number: leave --atoms out")
        return _read(name)
    make, per_site = _SITES[name]
    count = DEFAULT_ATOMS[name] if atoms is None else atoms
    n_side = max(1, round((count / per_site) ** (1 / 3)))
    if per_site * n_side**3 != count:
        sizes = ", ".join(str(per_site * n**3) for n in range(max(1, n_side - 1), n_side + 2))
        raise ValueError(f"no {name} box has {count} atoms, expected {per_site} n³: try {sizes}")
    return make(n_side)


def fragment(system: System, atoms: int = 3) -> System:
    """Return the first atom and its nearest ones, without a cell: enough to warm up on."""
    distances = np.linalg.norm(system.positions - system.positions[:1], axis=1)
    nearest = np.argsort(distances, kind="stable")[:atoms]
    return System(
        name=system.name,
        numbers=system.numbers[nearest],
        positions=system.positions[nearest],
        cell=np.eye(3) * 100.0,
        periodic=(False, False, False),
    )


def _read(name: str) -> System:
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"system {name!r} is neither water, carbon, iron nor a file: check the path"
        )
    from ase.io import read

    atoms: Any = read(path, index=0)
    x, y, z = (bool(flag) for flag in atoms.pbc)
    return System(
        name=path.stem,
        numbers=np.asarray(atoms.numbers, dtype=np.int64),
        positions=np.asarray(atoms.positions, dtype=np.float64),
        cell=np.asarray(atoms.cell.array, dtype=np.float64),
        periodic=(x, y, z),
    )


def neighbours(
    system: System, r_max: float, *, order: str = "receiver", threads: int = 1
) -> EdgeList:
    """List all edges shorter than `r_max`.

    Parameters
    ----------
    system : System
        Atoms and cell.
    r_max : float
        Cutoff in Å.
    order : {"receiver", "sender", "random"}
        Which index is sorted; MACE's own lists are sorted by sender, random is shuffled (seeded).
    threads : int
        Threads of the neighbour search.

    Raises
    ------
    MissingDependencyError
        vesin is not installed.
    ValueError
        Unknown order.
    """
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}, expected one of {', '.join(ORDERS)}")
    try:
        from vesin import NeighborList
    except ImportError as error:
        raise MissingDependencyError(
            "the benchmark needs vesin for its neighbour lists, which is not installed: "
            "pip install vesin"
        ) from error
    finder = NeighborList(cutoff=r_max, full_list=True, sorted=True, n_threads=threads)
    i, j, shifts = finder.compute(
        points=system.positions, box=system.cell, periodic=system.periodic, quantities="ijS"
    )
    # vesin: vector = positions[j] - positions[i] + S @ cell, sorted by i
    sender, receiver = np.asarray(i, dtype=np.int64), np.asarray(j, dtype=np.int64)
    shifts = np.asarray(shifts, dtype=np.int64)
    if order == "sender":
        return EdgeList(sender, receiver, shifts)
    if order == "receiver":
        permutation = np.argsort(receiver, kind="stable")
    else:
        permutation = np.random.default_rng(0).permutation(len(sender))
    return EdgeList(sender[permutation], receiver[permutation], shifts[permutation])
