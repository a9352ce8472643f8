"""Checks of copies of calculators, for tests of each kind of model."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
from ase import Atoms

from mdcg import MDCGCalculator


def round_trip(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


def check_copies(calc: MDCGCalculator, atoms: Atoms) -> None:
    """Copies give the same numbers, keep results and options, and share nothing."""
    # lists that were made at other positions give sums another order
    tolerance = 1e-10 if calc.parameters["dtype"] == "float64" else 1e-4
    same = partial(np.testing.assert_allclose, rtol=0, atol=tolerance)
    atoms = atoms.copy()
    atoms.calc = calc
    forces = atoms.get_forces()
    moved = atoms.copy()
    moved.rattle(0.05, seed=1)
    for way in (copy.deepcopy, round_trip):
        for other in (way(calc), way(atoms).calc):
            assert other.parameters == calc.parameters
            assert repr(other) == repr(calc)
            assert not other.calculation_required(atoms, ["energy", "forces"])
            assert not np.shares_memory(other.results["forces"], calc.results["forces"])
            got = other.get_forces(moved)
            assert not np.array_equal(got, forces)
            same(calc.results["forces"], forces)
            same(way(other).get_forces(moved), got)
            same(other.get_forces(atoms), forces)
            same(got, calc.get_forces(moved))
            calc.get_forces(atoms)
