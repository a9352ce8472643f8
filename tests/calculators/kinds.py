"""The kinds of calculators that test_contract.py runs on, and the structures it evaluates."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule

from mdcg import MDCGCalculator

from ..engine.test_program import two_layers

ROOT = Path(__file__).resolve().parents[2]
CHECKPOINTS = {
    "mace": ROOT / "examples" / "data" / "water.model",
    "nequip": ROOT / "tests" / "data" / "nequip_water.ckpt",
}
NAMES = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}
#: Set in processes with emulated CUDA, which test only what the engine runs on devices.
EMULATED = bool(os.environ.get("MDCG_TEST_EMULATED"))


@cache
def package(seed: int) -> Path:
    """Return the file of a small random package in float64."""
    made = two_layers(seed=seed).package(**NAMES)
    path = Path(tempfile.mkdtemp(prefix="mdcg-contract-")) / f"package{seed}.mdcg"
    made.save(path)
    return path


@dataclass(frozen=True)
class Kind:
    """A kind of model on a device."""

    name: str
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.name}-{self.device}"

    @property
    def engine(self) -> bool:
        return self.name not in CHECKPOINTS

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def noise(self) -> float:
        """How far two evaluations of one structure may differ, relative to the largest entry.

        torch adds up in no fixed order on GPUs; mdcg's engine and the CPU repeat every bit.
        """
        return 0.0 if self.engine or self.on_cpu else 1e-12

    @property
    def model(self) -> Any:
        if self.name == "committee":
            return [package(0), package(1)]
        return package(0) if self.engine else CHECKPOINTS[self.name]

    def make(self, **options: Any) -> MDCGCalculator:
        return MDCGCalculator(self.model, device=self.device, **options)

    @cache  # noqa: B019  (there are few kinds)
    def shared(self) -> MDCGCalculator:
        """Return a calculator shared by all tests that do not change it."""
        return self.make()

    @cache  # noqa: B019
    def on_the_cpu(self) -> MDCGCalculator:
        """Return a calculator of the same model on the CPU, for packages with generic kernels."""
        return MDCGCalculator(self.model, device="cpu", **self.generic)

    @property
    def generic(self) -> dict[str, str]:
        return {"kernels": "generic"} if self.engine else {}


def kinds() -> list[Any]:
    """Return the kinds as parameters; those that need what is not installed are skipped."""
    names = ("package", "committee") if EMULATED else ("mace", "nequip", "package", "committee")
    found = []
    for name in names:
        missing = name in CHECKPOINTS and importlib.util.find_spec(name) is None
        marks = [pytest.mark.skip(reason=f"{name} is not installed")] if missing else []
        if not EMULATED:
            found.append(pytest.param(Kind(name), id=name, marks=marks))
        on_gpus = [] if EMULATED else [pytest.mark.gpu]
        found.append(
            pytest.param(Kind(name, "cuda:0"), id=f"{name} on cuda", marks=[*marks, *on_gpus])
        )
    return found


# -- structures ------------------------------------------------------------------------------------

TRICLINIC = np.array([[4.4, 0.0, 0.0], [1.1, 4.3, 0.0], [-0.8, 1.2, 4.6]])


def with_cell(atoms: Atoms, cell: Any, pbc: Any) -> Atoms:
    atoms.set_cell(cell)
    atoms.pbc = pbc
    return atoms


def dimer(cell: Any = None, pbc: Any = False, seed: int = 3) -> Atoms:
    """Return two water molecules, disturbed, in a cell that is shorter than two cutoffs."""
    atoms = molecule("H2O")
    other = atoms.copy()
    other.positions = other.positions[:, [1, 2, 0]] + [1.2, 2.4, 1.6]
    atoms = atoms + other
    atoms.rattle(0.06, seed=seed)
    return with_cell(atoms, cell, pbc)


SYSTEMS: dict[str, Callable[[], Atoms]] = {
    "triclinic": lambda: dimer(TRICLINIC, True),
    "left-handed": lambda: dimer(TRICLINIC[[1, 0, 2]], True),
    "slab": lambda: dimer([4.4, 4.5, 30.0], (True, True, False)),
    "wire": lambda: dimer([0.0, 4.5, 0.0], (False, True, False)),
    "wire in a cell": lambda: dimer(TRICLINIC + np.diag([4, 0, 5]), (False, True, False)),
    "molecules": dimer,
    "molecules with an unused cell": lambda: dimer([4.0, 5.0, 6.0]),
    "one atom and its images": lambda: with_cell(Atoms("O"), np.diag([2.6, 2.7, 2.8]), True),
    "one atom": lambda: Atoms("O"),
    "no neighbours": lambda: with_cell(Atoms("OH", [[0, 0, 0], [9, 9, 9]]), np.eye(3) * 20, True),
    "atom apart": lambda: dimer() + Atoms("O", [[40, 0, 0]]),
}


def box(seed: int = 3) -> Atoms:
    return dimer(TRICLINIC, True, seed)


def has_stress(atoms: Atoms) -> bool:
    return bool(atoms.pbc.any() and abs(np.linalg.det(atoms.cell.array)) > 0.0)


def results(calc: MDCGCalculator, atoms: Atoms) -> dict[str, Any]:
    """Return all results of a calculator for a structure."""
    names = ("energy", "energies", "forces", *(["stress"] if has_stress(atoms) else []))
    found = {name: calc.get_property(name, atoms) for name in names}
    # deviations of committees
    return found | {name: each for name, each in calc.results.items() if name.endswith("_std")}


def assert_same(got: dict[str, Any], want: dict[str, Any], error: float = 1e-11) -> None:
    """Compare results relative to the largest entry of each; an error of 0 means equal bits."""
    assert set(got) == set(want)
    for name, value in want.items():
        scale = max(1e-3, float(np.abs(value).max(initial=0.0)))
        np.testing.assert_allclose(got[name], value, rtol=0, atol=error * scale, err_msg=name)
