"""Small structures of a model's elements, on which two models are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Structure:
    """Atoms in a cell."""

    name: str  # shown in tables
    atomic_numbers: NDArray[np.int64]  # [num_nodes]
    positions: NDArray[np.float64]  # [num_nodes, 3], Å
    cell: NDArray[np.float64]  # [3, 3], rows are vectors, Å; zero if nothing is periodic
    pbc: tuple[bool, bool, bool]
    # numbers that models read besides the atoms, such as a charge, by name
    inputs: Mapping[str, float] = field(default_factory=dict)

    @property
    def periodic(self) -> bool:
        """Whether any direction is periodic."""
        return any(self.pbc)


def verification_systems(
    elements: Sequence[int], r_max: float, *, symbols: Sequence[str] = (), seed: int = 2024
) -> tuple[Structure, ...]:
    """Return seven structures that differ in periodicity and in their distances.

    These are a cubic cell, a triclinic one, a slab, a cell smaller than the cutoff, a molecule, and
    two sets of isolated pairs: near bond lengths, and from there to the cutoff. `elements` are
    atomic numbers or types of NequIP, whose names are `symbols`. `r_max` also sets the spacing of
    the atoms.
    """
    from ase.data import atomic_numbers, chemical_symbols, covalent_radii

    rng = np.random.default_rng(seed)
    spacing = float(np.clip(0.55 * r_max, 1.2, 2.3))
    skew = np.array([[1.0, 0.0, 0.0], [0.35, 0.95, 0.0], [-0.25, 0.3, 1.05]])

    def numbers(count: int) -> NDArray[np.int64]:
        shuffled = rng.permutation(np.asarray(elements, dtype=np.int64))
        return np.resize(shuffled, count)  # repeats the shuffled elements

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
        "molecule", numbers(9), np.vstack([atoms, lonely]), np.zeros((3, 3)), (False, False, False)
    )
    names = symbols or [chemical_symbols[z] for z in elements]
    # types whose names are no elements get the radius of carbon
    radii = {
        z: covalent_radii[atomic_numbers.get(s, 6)] for z, s in zip(elements, names, strict=True)
    }
    combinations = list(combinations_with_replacement(elements, 2))

    def pairs(name: str, length: Callable[[float, float], float]) -> Structure:
        """Return 27 pairs; `length` takes a bond length and a fraction from 0 to 1."""
        # every pair of elements occurs once before any occurs twice
        chosen = [combinations[k] for k in np.resize(rng.permutation(len(combinations)), 27)]
        distances = [
            min(length(radii[a] + radii[b], fraction), 0.99 * r_max)
            for (a, b), fraction in zip(chosen, np.linspace(0.0, 1.0, 27), strict=True)
        ]
        halves = rng.normal(size=(27, 3))
        halves *= np.array(distances)[:, None] / 2.0 / np.linalg.norm(halves, axis=1, keepdims=True)
        grid = np.stack(np.meshgrid(*[np.arange(-1, 2)] * 3, indexing="ij"), axis=-1)
        centers = grid.reshape(-1, 3) * (r_max + max(distances))
        points = np.stack([centers - halves, centers + halves], axis=1).reshape(-1, 3)
        kinds = np.array(chosen, dtype=np.int64).reshape(-1)
        return Structure(name, kinds, points, np.zeros((3, 3)), (False, False, False))

    short = pairs("short pairs", lambda bond, fraction: (0.7 + 0.6 * fraction) * bond)
    stretched = pairs(
        "stretched pairs", lambda bond, fraction: 1.3 * bond + fraction * (r_max - 1.3 * bond)
    )
    return cubic, triclinic, slab, images, molecule, short, stretched
