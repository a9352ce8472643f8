"""MDCGCalculator on a device, from end to end; run as cuda_cases.py is."""

from __future__ import annotations

import copy
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import InputError
from ase.calculators.fd import FiniteDifferenceCalculator
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator
from mdcg.errors import PackageError, UnsupportedProblemError
from mdcg.package import Package

from .cuda_cases import DATA, NAMES, water, with_kernels
from .cuda_device import choose_devices
from .test_program import two_layers

pytest_generate_tests = choose_devices
PROPERTIES = ("energy", "energies", "forces", "stress")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return with_kernels(two_layers().package(**NAMES), tmp_path / "p.mdcg")


def crystal(seed: int = 0) -> Atoms:
    """Sheared, displaced, of three elements, shorter than two cutoffs."""
    rng = np.random.default_rng(seed)
    atoms = bulk("C", "fcc", a=3.6, cubic=True)
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.set_cell(atoms.cell + rng.normal(scale=0.15, size=(3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def results(calc: MDCGCalculator, atoms: Atoms) -> dict[str, Any]:
    names = PROPERTIES if atoms.pbc.all() else PROPERTIES[:3]
    return {name: calc.get_property(name, atoms) for name in names}


def assert_same(got: dict[str, Any], want: dict[str, Any], error: float = 1e-11) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        scale = max(1e-3, float(np.abs(value).max()))
        np.testing.assert_allclose(got[name], value, rtol=0, atol=error * scale, err_msg=name)


def test_systems_in_turn(path: Path) -> None:
    """Other sizes, species, cells and periodicities through one calculator."""
    cpu, cuda = MDCGCalculator(path, kernels="generic"), MDCGCalculator(path, device="cuda")
    slab = crystal(1)
    slab.pbc = (True, True, False)
    mirrored = crystal()
    mirrored.numbers = mirrored.numbers[::-1].copy()
    systems = [crystal(), molecule("CH3CH2OH"), slab, mirrored, molecule("H2O"), crystal()]
    found = [results(cuda, atoms) for atoms in systems]
    for atoms, got in zip(systems, found, strict=True):
        assert_same(got, results(cpu, atoms))
    assert_same(found[-1], found[0], 0.0)
    assert results(cuda, Atoms())["energy"] == 0.0


def liquid() -> Atoms:
    positions, types, cell = water(count=4)
    return Atoms(np.array([1, 8])[types], positions, cell=cell, pbc=True)


@pytest.mark.parametrize("trained", [False, True])
def test_forces_and_stress_are_derivatives(tmp_path: Path, path: Path, trained: bool) -> None:
    """Of the energies that the device itself finds."""
    atoms = crystal()
    if trained:
        atoms = liquid()
        path = with_kernels(Package.open(DATA / "mace_water_float64.mdcg"), tmp_path / "q.mdcg")
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


def test_batches_committees_and_descriptors(tmp_path: Path, path: Path) -> None:
    other = with_kernels(two_layers(seed=1).package(**NAMES), tmp_path / "q.mdcg")
    images = [crystal(), molecule("H2O"), crystal(1)]
    pair = [
        MDCGCalculator([path, other], kernels="generic"),
        MDCGCalculator([path, other], device="cuda"),
    ]
    cpu, cuda = (calc.batch(images) for calc in pair)
    for one, other_one in zip(cuda, cpu, strict=True):
        np.testing.assert_allclose(one["forces"], other_one["forces"], atol=1e-10)
        assert one["energy"] == pytest.approx(other_one["energy"], rel=1e-11)
    got, want = (results(calc, images[0]) for calc in pair[::-1])
    assert_same(got, want)
    np.testing.assert_allclose(
        pair[1].results["forces_std"], pair[0].results["forces_std"], atol=1e-10
    )
    rows = [calc.get_descriptors(images[0]) for calc in pair]
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-10)


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


def test_copies_are_refused_as_on_the_processor(path: Path) -> None:
    said = []
    for device in ("cpu", "cuda"):
        calc = MDCGCalculator(path, device=device)
        results(calc, crystal())
        for function in (copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="pickle") as error:
                function(calc)
            said.append(str(error.value))
    assert said[:2] == said[2:]
    atoms = crystal()
    atoms.calc = MDCGCalculator(path, device="cuda")
    atoms.get_forces()
    assert atoms.copy().calc is None


def test_errors_leave_the_calculator_usable(path: Path) -> None:
    atoms = crystal()
    calc = MDCGCalculator(path, device="cuda")
    want = results(calc, atoms)
    wrong = atoms.copy()
    wrong.positions[1] = wrong.positions[0]
    with pytest.raises((InputError, ValueError), match="same place"):
        results(calc, wrong)
    unknown = atoms.copy()
    unknown.numbers[0] = 92
    with pytest.raises(InputError, match="U"):
        results(calc, unknown)
    assert_same(results(calc, atoms), want, 0.0)


def test_packages_that_have_no_kernels_for_devices(tmp_path: Path) -> None:
    path = tmp_path / "old.mdcg"
    two_layers().package(**NAMES).save(path)
    with pytest.raises(UnsupportedProblemError, match="convert the model again") as error:
        MDCGCalculator(path, device="cuda")
    assert "\n" not in str(error.value)
    assert np.isfinite(results(MDCGCalculator(path, kernels="generic"), crystal())["energy"])
    with pytest.raises(PackageError):
        MDCGCalculator(tmp_path / "none.mdcg", device="cuda")
