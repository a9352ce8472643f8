"""MDCGCalculator with packages: what ASE expects, batches, committees, errors, no torch."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import InputError, PropertyNotImplementedError
from ase.calculators.fd import FiniteDifferenceCalculator

from mdcg import MDCGCalculator
from mdcg.errors import DeviceError, KernelCompileError, PackageError
from mdcg.package.kernels import add_kernels

from .test_program import two_layers

NAMES = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}


def write(path: Path, *, dtype: str = "float64", seed: int = 0, with_kernels: bool = False) -> Path:
    package = two_layers(dtype, seed).package(**NAMES)
    if with_kernels:
        package.manifest["kernels"] = add_kernels(package.manifest["layers"], package.tensors)
    package.save(path)
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write(tmp_path / "p.mdcg")


@pytest.fixture
def crystal(rng: np.random.Generator) -> Atoms:
    """Sheared, displaced, of three elements, shorter than two cutoffs."""
    atoms = bulk("C", "fcc", a=3.6, cubic=True) * (1, 1, 2)
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.set_cell(atoms.cell + rng.normal(scale=0.15, size=(3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def test_forces_and_stress_are_derivatives(package: Path, crystal: Atoms) -> None:
    crystal.calc = MDCGCalculator(package)
    forces, stress = crystal.get_forces(), crystal.get_stress()
    numeric = crystal.copy()
    numeric.calc = FiniteDifferenceCalculator(crystal.calc, eps_disp=1e-4, eps_strain=1e-5)
    assert np.abs(forces).max() > 0.1
    np.testing.assert_allclose(forces, numeric.get_forces(), atol=2e-5 * np.abs(forces).max())
    np.testing.assert_allclose(stress, numeric.get_stress(), atol=2e-5 * np.abs(stress).max())
    energies = crystal.get_potential_energies()
    assert energies.sum() == pytest.approx(crystal.get_potential_energy(), rel=1e-13)
    assert crystal.get_potential_energy(force_consistent=True) == crystal.get_potential_energy()


def test_only_what_is_asked_for(package: Path, crystal: Atoms) -> None:
    calc = crystal.calc = MDCGCalculator(package)
    crystal.get_potential_energy()
    assert {"forces", "stress"}.isdisjoint(calc.results)
    assert all(layer["backward_ms"] == 0.0 for layer in calc.report().packages[0]["layers"])
    crystal.get_forces()
    assert "stress" not in calc.results
    assert any(layer["backward_ms"] > 0.0 for layer in calc.report().packages[0]["layers"])
    crystal.get_stress()
    crystal.positions += 0.01
    crystal.get_forces()
    assert "stress" in calc.results, "constant-pressure runs need one evaluation per step"


def test_results_do_not_depend_on_skin_history_or_threads(
    tmp_path: Path, crystal: Atoms, rng: np.random.Generator
) -> None:
    path = write(tmp_path / "p.mdcg", dtype="float32")
    calcs = [
        MDCGCalculator(path, skin=skin, threads=threads)
        for skin, threads in ((0.0, 1), (0.7, 2), (1.5, 3))
    ]
    for step in range(12):
        crystal.positions += rng.normal(scale=0.03, size=crystal.positions.shape)
        if step % 4 == 3:
            crystal.set_cell(crystal.cell * 1.002, scale_atoms=True)
        found = []
        for calc in calcs:
            crystal.calc = calc
            found.append((crystal.get_potential_energy(), crystal.get_forces()))
        for energy, forces in found[1:]:
            assert energy == pytest.approx(found[0][0], rel=1e-6)
            np.testing.assert_allclose(forces, found[0][1], atol=2e-4)
    assert calcs[0].neighbors.num_builds == 12
    assert calcs[2].neighbors.num_builds < 6


def test_changed_species_positions_and_periodicity(package: Path, crystal: Atoms) -> None:
    calc = crystal.calc = MDCGCalculator(package)
    before = crystal.get_potential_energy()
    swapped = crystal.copy()
    swapped.numbers[[0, 1]] = swapped.numbers[[1, 0]]
    fresh = MDCGCalculator(package)
    for change in (swapped, crystal[:-1], Atoms(crystal, pbc=(True, False, True)), crystal):
        change.calc = calc
        there = change.copy()
        there.calc = fresh
        fresh.neighbors.reset()
        assert change.get_potential_energy() == pytest.approx(
            there.get_potential_energy(), rel=1e-12
        )
    assert crystal.get_potential_energy() == before


def test_batch(package: Path, crystal: Atoms, rng: np.random.Generator) -> None:
    images = [crystal, molecule("H2O"), Atoms("O"), Atoms(), molecule("CH4"), crystal[:5]]
    for _ in range(40):
        images.append(molecule("C6H6"))
        images[-1].rattle(0.1, rng=rng)
    calc = MDCGCalculator(package)
    found = calc.batch(images)
    assert calc.results == {}
    assert len(found) == len(images)
    for atoms, each in zip(images, found, strict=True):
        single = MDCGCalculator(package)
        atoms = atoms.copy()
        atoms.calc = single
        assert each["energy"] == pytest.approx(atoms.get_potential_energy(), rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(each["forces"], atoms.get_forces(), atol=1e-10)
        np.testing.assert_allclose(each["energies"], atoms.get_potential_energies(), atol=1e-10)
        assert "stress" not in each
    crystals = [crystal, crystal * (2, 1, 1)]
    with_stress = calc.batch(crystals, ["stress"])
    for atoms, each in zip(crystals, with_stress, strict=True):
        atoms.calc = MDCGCalculator(package)
        np.testing.assert_allclose(each["stress"], atoms.get_stress(), atol=1e-11)
        assert "forces" not in each
    assert calc.batch([]) == []
    with pytest.raises(PropertyNotImplementedError, match="periodic along three directions"):
        calc.batch(images, ["stress"])
    with pytest.raises(PropertyNotImplementedError, match="dipole not implemented"):
        calc.batch(images, ["dipole"])


def test_committee(tmp_path: Path, crystal: Atoms) -> None:
    paths = [write(tmp_path / f"{k}.mdcg", seed=k) for k in range(3)]
    calc = crystal.calc = MDCGCalculator(paths)
    assert "committee of 3 packages" in repr(calc)
    crystal.get_forces(), crystal.get_stress(), crystal.get_potential_energies()
    singles = []
    for path in paths:
        atoms = crystal.copy()
        atoms.calc = MDCGCalculator(path)
        atoms.get_forces(), atoms.get_stress(), atoms.get_potential_energies()
        singles.append(atoms.calc.results)
    for name in ("energy", "energies", "forces", "stress"):
        values = np.array([each[name] for each in singles])
        np.testing.assert_allclose(calc.results[name], values.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(calc.results[f"{name}_std"], values.std(axis=0), atol=1e-9)
        np.testing.assert_allclose(calc.results[f"{name}_committee"], values, atol=1e-10)
    assert calc.neighbors.num_builds == 1
    assert len(calc.report().packages) == 3
    batch = calc.batch([crystal, molecule("H2O")])
    np.testing.assert_allclose(batch[0]["forces_std"], calc.results["forces_std"], atol=1e-9)
    with pytest.raises(ValueError, match=r"a committee has the member 'x.model', expected paths"):
        MDCGCalculator([paths[0], "x.model"])
    with pytest.raises(ValueError, match="the committee is empty"):
        MDCGCalculator([])


def test_descriptors(package: Path, crystal: Atoms) -> None:
    calc = MDCGCalculator(package)
    found = calc.get_descriptors(crystal)
    assert found.shape == (len(crystal), 2 * 7 * 4)
    other = calc.get_descriptors(crystal[::-1])
    np.testing.assert_allclose(other[::-1], found, atol=1e-12)
    assert np.abs(other - found).max() > 1e-3
    assert calc.results == {}
    assert calc.get_descriptors(Atoms()).shape == (0, found.shape[1])
    with pytest.raises(ValueError, match="no atoms to describe"):
        MDCGCalculator(package).get_descriptors()


def test_report_and_log(
    tmp_path: Path,
    crystal: Atoms,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write(tmp_path / "p.mdcg", with_kernels=True)
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    calc = crystal.calc = MDCGCalculator(path)
    assert "not loaded" in str(calc.report())
    with caplog.at_level(logging.INFO, logger="mdcg"):
        crystal.get_forces()
        crystal.rattle(0.01)
        crystal.get_forces()
    text = str(calc.report())
    assert "generic: kernel" in text
    assert "MDCG_DISABLE_JIT=1 forbids compiling it" in text
    assert "ms forward" in text
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1, "said once"
    assert "runs on generic kernels" in warnings[0]
    strict = MDCGCalculator(path, kernels="generated")
    with pytest.raises(KernelCompileError, match="MDCG_DISABLE_JIT=1"):
        strict.get_potential_energy(crystal)
    caplog.clear()
    MDCGCalculator(path, kernels="generic").get_potential_energy(crystal)
    assert not [r for r in caplog.records if r.levelno == logging.WARNING]


def test_what_a_package_is(package: Path, tmp_path: Path) -> None:
    calc = MDCGCalculator(package)
    assert calc.species == ("H", "C", "O")
    assert (calc.device, calc.dtype, calc.heads) == ("cpu", "float64", ("Default",))
    assert calc.model is None
    assert not calc.is_patched
    assert "package of test, H C O, r_max 3 Å, float64, cpu, head Default" in repr(calc)
    MDCGCalculator(str(package), device="cpu", dtype="float64", head="Default")
    renamed = package.rename(tmp_path / "no suffix")
    assert MDCGCalculator(renamed).species == ("H", "C", "O"), "by its content"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "tpu"}, DeviceError, "device is 'tpu', expected 'cpu', 'cuda' or 'cuda:N'"),
        ({"device": "cuda:99"}, DeviceError, "device is 'cuda:99', and there"),
        ({"dtype": "float32"}, ValueError, "was converted to float64, which is fixed"),
        ({"dtype": "half"}, ValueError, "dtype is 'half', expected"),
        ({"head": "pbe"}, ValueError, "was converted with head 'Default'"),
        ({"kernels": "fast"}, ValueError, "kernels is 'fast', expected auto"),
        ({"threads": -1}, ValueError, "threads is -1, expected"),
        ({"skin": -1.0}, ValueError, "skin is -1.0, expected"),
        ({"species_types": {"H": "D"}}, ValueError, "maps H to 'D', expected one of"),
    ],
)
def test_options_that_make_no_sense(
    package: Path, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MDCGCalculator(package, **options)


def test_files_that_are_no_packages(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"nowhere.mdcg: cannot be opened"):
        MDCGCalculator(tmp_path / "nowhere.mdcg")
    (tmp_path / "short.mdcg").write_bytes(b"abc")
    with pytest.raises(PackageError, match=r"short.mdcg"):
        MDCGCalculator(tmp_path / "short.mdcg")


def test_types_that_are_no_elements(tmp_path: Path) -> None:
    two_layers().package(type_names=["water_H", "water_O", "X1"]).save(tmp_path / "p.mdcg")
    with pytest.raises(ValueError, match="no chemical symbols: pass species_types"):
        MDCGCalculator(tmp_path / "p.mdcg")
    types = {"H": "water_H", "O": "water_O"}
    calc = MDCGCalculator(tmp_path / "p.mdcg", species_types=types)
    assert calc.species == ("H", "O")
    assert np.isfinite(calc.get_potential_energy(molecule("H2O")))
    with pytest.raises(InputError, match="the model does not know C; it was trained for H, O"):
        calc.get_potential_energy(molecule("CH4"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.positions.__setitem__((1, 0), np.nan), "atom 1 at .* no usable|no usable pos"),
        (lambda a: a.positions.__setitem__(1, a.positions[0]), "nodes 0 and 1 are at|1 and 0 are"),
        (lambda a: a.set_pbc(True), "periodic along abc, where its cell vector is zero"),
        (lambda a: a.numbers.__setitem__(0, 92), "does not know U; it was trained for H, C, O"),
    ],
)
def test_unusable_structures(package: Path, change, message: str) -> None:
    atoms = molecule("H2O")
    change(atoms)
    calc = atoms.calc = MDCGCalculator(package)
    with pytest.raises(InputError, match=message):
        atoms.get_forces()
    good = molecule("H2O")
    good.calc = calc
    assert np.isfinite(good.get_forces()).all(), "usable after an error"
    with pytest.raises(PropertyNotImplementedError, match="periodic along three directions"):
        good.get_stress()


def test_no_atoms(package: Path) -> None:
    calc = MDCGCalculator(package)
    assert calc.get_potential_energy(Atoms()) == 0.0
    assert calc.get_forces(Atoms()).shape == (0, 3)


def test_package_options_are_refused_for_torch_models() -> None:
    with pytest.raises(ValueError, match="kernels, threads and precision are for packages"):
        MDCGCalculator("some.model", threads=2)


def test_without_torch(package: Path) -> None:
    code = (
        "import sys\nfrom ase.build import molecule\nfrom mdcg import MDCGCalculator\n"
        f"atoms = molecule('H2O')\natoms.calc = MDCGCalculator({str(package)!r})\n"
        "atoms.get_forces()\natoms.calc.batch([atoms])\natoms.calc.get_descriptors()\n"
        "print(sorted(set(sys.modules) & {'torch', 'vesin', 'e3nn', 'mace', 'nequip'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_forked_child_evaluates(package: Path, crystal: Atoms) -> None:
    """After threads have run: GNU OpenMP alone would wait for them forever."""
    code = (
        "import os, sys\nimport numpy as np\nfrom ase.build import bulk\n"
        "from mdcg import MDCGCalculator\n"
        "atoms = bulk('C', 'fcc', a=3.6, cubic=True) * (6, 6, 6)\n"
        f"atoms.calc = MDCGCalculator({str(package)!r}, threads=2)\n"
        "forces = atoms.get_forces()\natoms.positions += 1e-9\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if np.allclose(atoms.get_forces(), forces, atol=1e-5) else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], timeout=120, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
