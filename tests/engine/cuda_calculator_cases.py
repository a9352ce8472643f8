"""MDCGCalculator on a device, besides tests/calculators; run as cuda_cases.py is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.fd import FiniteDifferenceCalculator
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator
from mdcg.package import Package

from ..calculators.kinds import assert_same, results
from .cuda_cases import DATA, NAMES, saved, water
from .cuda_device import choose_devices
from .test_program import two_layers

pytest_generate_tests = choose_devices


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return saved(two_layers().package(**NAMES), tmp_path / "p.mdcg")


def crystal(seed: int = 0) -> Atoms:
    """Sheared, displaced, of three elements, shorter than two cutoffs."""
    rng = np.random.default_rng(seed)
    atoms = bulk("C", "fcc", a=3.6, cubic=True)
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.set_cell(atoms.cell + rng.normal(scale=0.15, size=(3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def liquid() -> Atoms:
    positions, types, cell = water(count=4)
    return Atoms(np.array([1, 8])[types], positions, cell=cell, pbc=True)


def test_forces_and_stress_of_a_trained_model_are_derivatives(tmp_path: Path) -> None:
    """Of the energies that the device itself finds."""
    atoms = liquid()
    path = saved(Package.open(DATA / "mace_water_float64.mdcg"), tmp_path / "p.mdcg")
    calc = MDCGCalculator(path, device="cuda")
    want = results(calc, atoms)
    assert np.abs(want["forces"]).max() > 0.1
    numeric = atoms.copy()
    numeric.calc = FiniteDifferenceCalculator(calc, eps_disp=1e-4, eps_strain=1e-5)
    for name in ("forces", "stress"):
        limit = 2e-5 * np.abs(want[name]).max()
        np.testing.assert_allclose(
            numeric.calc.get_property(name, numeric), want[name], rtol=0, atol=limit, err_msg=name
        )


def test_dynamics(path: Path) -> None:
    """Steps that reuse the list, steps that make it again, a changing cell."""
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


def test_two_calculators_in_threads(path: Path, devices: tuple[int, int]) -> None:
    calcs = [MDCGCalculator(path, device=f"cuda:{device}") for device in devices]
    systems = [crystal(1), crystal(2)]
    cpu = MDCGCalculator(path, kernels="generic")
    want = [results(cpu, atoms) for atoms in systems]
    got: list[list[dict[str, Any]]] = [[], []]

    def work(k: int) -> None:
        for _ in range(3):
            calcs[k].reset()
            got[k].append(results(calcs[k], systems[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, device in enumerate(devices):
        assert calcs[k].report().packages[0]["device"] == f"cuda:{device}"
        assert len(got[k]) == 3
        for each in got[k]:
            assert_same(each, want[k])
            assert_same(each, got[k][0], 0.0)
