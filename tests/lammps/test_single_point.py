"""Energies, forces and virials of one structure: LAMMPS against ASE with the same package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator

from ..covering import covering
from .lmp import (
    BAR,
    TOLERANCE,
    VOIGT,
    compare,
    package,
    reference,
    single_point,
    water,
)


def cubic() -> Atoms:
    return water(3)


def triclinic() -> Atoms:
    atoms = water(3, seed=2)
    shear = np.array([[1.0, 0.0, 0.0], [0.2, 1.05, 0.0], [-0.15, 0.3, 0.95]])
    atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    return atoms


def small() -> Atoms:
    """Return a cell shorter than r_max, in which atoms are neighbours of their own images."""
    atoms = water(1, seed=3)
    atoms.set_cell(np.diag([3.3, 3.6, 3.9]))
    return atoms


def slab() -> Atoms:
    atoms = water(3, seed=4)
    atoms.positions[:, 2] += 3.0
    atoms.set_cell(np.diag([*atoms.cell.lengths()[:2], 20.0]))
    atoms.pbc = (True, True, False)
    return atoms


def molecule() -> Atoms:
    atoms = water(1, seed=5)
    atoms.positions += 10.0 - atoms.positions.mean(axis=0)
    atoms.set_cell([20.0] * 3)
    atoms.pbc = False
    return atoms


def cluster() -> Atoms:
    atoms = water(2, seed=6)
    atoms.positions += 6.0
    atoms.set_cell([25.0] * 3)
    atoms.pbc = False
    return atoms


def one_atom() -> Atoms:
    return Atoms("O", [[1.0, 2.0, 3.0]], cell=[20.0] * 3, pbc=True)


def no_edges() -> Atoms:
    return Atoms("OHHO", [[1, 1, 1], [7, 1, 1], [1, 7, 1], [7, 7, 7]], cell=[13.0] * 3, pbc=True)


def sparse() -> Atoms:
    """Return a few atoms in a large box, in which most bins of a neighbour list are empty."""
    return water(5, spacing=33.6, seed=7)[:259]


SYSTEMS: dict[str, tuple[Callable[[], Atoms], str]] = {
    "cubic": (cubic, "p p p"),
    "triclinic": (triclinic, "p p p"),
    "small": (small, "p p p"),
    "slab": (slab, "p p f"),
    "molecule": (molecule, "f f f"),
    "shrunk": (cluster, "s s m"),
    "one-atom": (one_atom, "p p p"),
    "no-edges": (no_edges, "p p p"),
    "sparse": (sparse, "p p p"),
}


@covering(system=SYSTEMS, ranks=[1, 2], name=["mace", "nequip"], dtype=["float64", "float32"])
def test_against_ase(tmp_path: Path, name: str, dtype: str, system: str, ranks: int) -> None:
    make, boundary = SYSTEMS[system]
    atoms, model = make(), package(name, dtype)
    output = single_point(tmp_path, atoms, model, boundary=boundary, ranks=ranks)
    compare(output, reference(atoms, model), TOLERANCE[dtype])


@covering(system=["triclinic", "slab", "molecule"], ranks=[1, 2], name=["sevennet", "nequix"])
def test_other_frameworks(tmp_path: Path, name: str, system: str, ranks: int) -> None:
    test_against_ase(tmp_path, name, "float64", system, ranks)


@covering(system=["slab", "molecule"], ranks=[1, 2], options=[{}, {"dispersion": "pbe"}])
def test_virial_of_open_systems(
    tmp_path: Path, system: str, ranks: int, options: dict[str, str]
) -> None:
    """Virials equal finite differences by strain, also along open directions."""
    make, boundary = SYSTEMS[system]
    atoms, model, step = make(), package("nequip", "float64"), 1e-6  # few pairs cross the cutoff
    settings = " ".join(f"{name} {value}" for name, value in options.items())
    output = single_point(tmp_path, atoms, model, boundary=boundary, ranks=ranks, settings=settings)
    volume = output.last["Volume"]
    found = [output.last[f"c_p[{k}]"] * volume / BAR for k in (1, 2, 3, 6, 5, 4)]
    calculator = MDCGCalculator(model, threads=1, **options)
    for value, (a, b) in zip(found, VOIGT, strict=True):
        energies = []
        for sign in (1, -1):
            strain = np.eye(3)
            strain[a, b] += sign * step
            strained = atoms.copy()
            strained.set_cell(atoms.cell.array @ strain, scale_atoms=True)
            energies.append(calculator.get_property("energy", strained))
        assert value == pytest.approx((energies[1] - energies[0]) / (2.0 * step), abs=1e-6)


def test_many_atoms_on_two_ranks(tmp_path: Path) -> None:
    """Results equal ASE's for enough atoms that the engine reorders them on one rank."""
    atoms, model = water(12), package("mace", "float64")
    want = reference(atoms, model)
    for ranks in (1, 2):
        compare(single_point(tmp_path, atoms, model, ranks=ranks), want, 1e-10)


def test_units_real(tmp_path: Path) -> None:
    atoms, model = water(2), package("mace", "float64")
    want = reference(atoms, model)
    output = single_point(tmp_path, atoms, model, units="real")
    np.testing.assert_allclose(output.last["PotEng"] / 23.060549, want["energy"], rtol=1e-8)
    np.testing.assert_allclose(
        output.dump()[-1][:, 1:4] / 23.060549, want["forces"], rtol=0, atol=1e-7
    )
