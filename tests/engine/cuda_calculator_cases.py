"""MDCGCalculator on a device, in addition to tests/calculators; run like cuda_cases.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator

from ..calculators.kinds import assert_same, results
from .cuda_cases import NAMES, saved
from .test_program import two_layers


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(two_layers().package(**NAMES), tmp_path / "p.mdcg")


def crystal(seed: int = 0) -> Atoms:
    """Return a sheared, displaced cell of three elements, smaller than two cutoffs."""
    rng = np.random.default_rng(seed)
    atoms = bulk("C", "fcc", a=3.6, cubic=True)
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.set_cell(atoms.cell + rng.normal(scale=0.15, size=(3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def test_dynamics(path: Path) -> None:
    """Molecular dynamics on a device gives CPU results, with kept and new lists and cells."""
    atoms = crystal()
    atoms.calc = MDCGCalculator(path, device="cuda", skin=0.2)
    cpu = MDCGCalculator(path, kernels="generic")
    rng = np.random.default_rng(2)
    atoms.set_velocities(rng.normal(scale=0.02, size=(len(atoms), 3)))
    before = atoms.get_total_energy()
    dynamics = VelocityVerlet(atoms, timestep=0.25 * units.fs)
    for _ in range(4):
        dynamics.run(4)
        assert_same(results(atoms.calc, atoms), results(cpu, atoms))
    assert atoms.get_total_energy() == pytest.approx(before, abs=2e-2)
    atoms.set_cell(atoms.cell * 1.01, scale_atoms=True)
    assert_same(results(atoms.calc, atoms), results(cpu, atoms))
    report = atoms.calc.report().packages[0]
    assert report["device"] == "cuda:0"
    assert report["replays"] > 0
    assert "cuda:0" in str(atoms.calc.report())
