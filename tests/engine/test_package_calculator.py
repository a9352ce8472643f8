"""MDCGCalculator with packages, besides tests/calculators: committees, reports, no torch."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import InputError

from mdcg import MDCGCalculator
from mdcg.errors import KernelCompileError, PackageError

from ..processes import printed_by
from .test_program import two_layers

NAMES = {"type_names": ["H", "O", "C"], "atomic_numbers": [1, 8, 6]}


def write(path: Path, *, dtype: str = "float64", seed: int = 0, **inputs: int) -> Path:
    options = {"graph_fields": sorted(inputs.items())}
    two_layers(dtype, seed).package(**NAMES, options=options).save(path)
    return path


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return write(tmp_path / "p.mdcg")


@pytest.fixture
def crystal(rng: np.random.Generator) -> Atoms:
    """Return a sheared, displaced cell of three elements, smaller than two cutoffs."""
    atoms = bulk("C", "fcc", a=3.6, cubic=True) * (1, 1, 2)
    atoms.numbers[:] = np.resize([1, 8, 6], len(atoms))
    atoms.set_cell(atoms.cell + rng.normal(scale=0.15, size=(3, 3)), scale_atoms=True)
    atoms.positions += rng.normal(scale=0.1, size=atoms.positions.shape)
    return atoms


def test_an_energy_alone_costs_no_backward_pass(package: Path, crystal: Atoms) -> None:
    calc = crystal.calc = MDCGCalculator(package)
    crystal.get_potential_energy()
    assert all(layer["backward_ms"] == 0.0 for layer in calc.report().packages[0]["layers"])
    crystal.get_forces()
    assert any(layer["backward_ms"] > 0.0 for layer in calc.report().packages[0]["layers"])


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


def test_report_and_log(
    tmp_path: Path,
    crystal: Atoms,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = write(tmp_path / "p.mdcg")
    monkeypatch.setenv("MDCG_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("MDCG_DISABLE_JIT", "1")
    calc = crystal.calc = MDCGCalculator(path)
    assert "not loaded" in str(calc.report())
    with caplog.at_level(logging.INFO, logger="mdcg"):
        crystal.get_forces()
        crystal.rattle(0.01)
        crystal.get_forces()
    text = str(calc.report())
    assert "generic: kernels for" in text
    assert "MDCG_DISABLE_JIT=1 forbids compiling" in text
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
    assert calc.heads == ("Default",)
    assert "package of test, H C O, r_max 3 Å, float64, cpu, head Default" in repr(calc)
    for name in ("float64", "fp64"):
        MDCGCalculator(
            str(package), device="cpu", dtype=name, precision=name, head="Default", damping="bj"
        )
    renamed = package.rename(tmp_path / "no suffix")
    assert MDCGCalculator(renamed).species == ("H", "C", "O"), "by its content"


@pytest.mark.parametrize(
    ("stated", "wrong"),
    [
        ({}, None),
        ({"charge": -1, "spin": 2}, None),
        ({"charge": -1.0, "total_charge": np.int64(-1), "total_spin": np.array([2])}, None),
        ({"charge": None, "phase": np.float32(3), "other": 7}, None),
        (
            {"charge": 0},
            r"charge of the structure is 0, and \S*p.mdcg was made for total_charge=-1",
        ),
        ({"total_charge": -1.5}, "total_charge of the structure is -1.5, and .* total_charge=-1"),
        ({"spin": np.float64(1)}, "spin of the structure is 1.0, .* total_spin=2"),
        ({"charge": -1, "total_charge": 1}, "total_charge of the structure is 1, and"),
        ({"phase": "liquid"}, "phase of the structure is 'liquid', and .* made for phase=3"),
    ],
    ids=str,
)
def test_inputs_that_the_conversion_fixed(
    tmp_path: Path, stated: dict[str, Any], wrong: str | None
) -> None:
    """Structures that state another value than the conversion fixed are refused."""
    path = write(tmp_path / "p.mdcg", total_charge=-1, total_spin=2, phase=3)
    calc, atoms = MDCGCalculator(path, kernels="generic"), molecule("H2O")
    for text in (repr(calc), calc._backend._members[0].model.summary()):
        assert "made for phase=3, total_charge=-1, total_spin=2, " in text
    atoms.set_velocities(np.ones((3, 3)))
    energy = calc.get_potential_energy(atoms)
    atoms.info.update(stated)
    calls = (
        calc.get_potential_energy,
        calc.get_descriptors,
        calc.get_heat_flux,
        calc.get_hessian,
    )
    for call in calls:
        with pytest.raises(InputError, match=wrong) if wrong else nullcontext():
            call(atoms)
    with pytest.raises(InputError, match=rf"images\[1\]: {wrong}") if wrong else nullcontext():
        calc.batch([molecule("H2O"), atoms])
    atoms.info.clear()
    assert calc.get_potential_energy(atoms) == energy


def test_a_committee_has_one_value_of_fixed_inputs(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{q}.mdcg", total_charge=q) for q in (0, 1)]
    with pytest.raises(ValueError, match=r"1.mdcg was made for total_charge=1, and another .*=0"):
        MDCGCalculator(paths)
    atoms = molecule("H2O")
    atoms.info["charge"] = 1
    with pytest.raises(InputError, match="charge of the structure is 1"):
        MDCGCalculator([paths[0], write(tmp_path / "p.mdcg")]).get_forces(atoms)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": "float32"}, ValueError, "was converted to float64, which is fixed"),
        ({"head": "pbe"}, ValueError, "was converted with head 'Default'"),
        ({"kernels": "fast"}, ValueError, "kernels is 'fast', expected auto"),
        ({"threads": -1}, ValueError, "threads is -1, expected"),
        ({"species_types": {"H": "D"}}, ValueError, "maps H to 'D', expected one of"),
        ({"damping": "foo"}, ValueError, "damping is 'foo' .* without dispersion, expected the"),
        ({"damping": "zero"}, ValueError, "without dispersion, expected the functional"),
        ({"dispersion_cutoff": 9.0}, ValueError, "dispersion_cutoff 9 Å without dispersion"),
    ],
)
def test_options_that_make_no_sense(
    package: Path, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MDCGCalculator(package, **options)


def test_no_hessian_in_float32(tmp_path: Path) -> None:
    calc = MDCGCalculator(write(tmp_path / "p.mdcg", dtype="float32"))
    with pytest.raises(
        ValueError, match=r"in float64, got float32: give .* package with --dtype f"
    ):
        calc.get_hessian(molecule("H2O"))


def test_files_that_are_no_packages(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"nowhere.mdcg: cannot be opened"):
        MDCGCalculator(tmp_path / "nowhere.mdcg")
    (tmp_path / "short.mdcg").write_bytes(b"abc")
    with pytest.raises(PackageError, match=r"short.mdcg"):
        MDCGCalculator(tmp_path / "short.mdcg")


def test_types_that_are_no_elements(tmp_path: Path) -> None:
    two_layers().package(type_names=["water_H", "water_O", "X1"]).save(tmp_path / "p.mdcg")
    with pytest.raises(ValueError, match="not chemical symbols: pass species_types"):
        MDCGCalculator(tmp_path / "p.mdcg")
    types = {"H": "water_H", "O": "water_O"}
    calc = MDCGCalculator(tmp_path / "p.mdcg", species_types=types)
    assert calc.species == ("H", "O")
    assert np.isfinite(calc.get_potential_energy(molecule("H2O")))
    with pytest.raises(InputError, match="the model does not know C, only H, O"):
        calc.get_potential_energy(molecule("CH4"))


def test_package_options_are_refused_for_torch_models() -> None:
    with pytest.raises(ValueError, match="precision, memory, fixed_waves and dispersion are for"):
        MDCGCalculator("some.model", threads=2)


def test_without_torch(package: Path) -> None:
    code = (
        "import sys\nfrom ase.build import molecule\nfrom mdcg import MDCGCalculator\n"
        f"atoms = molecule('H2O')\natoms.calc = MDCGCalculator({str(package)!r})\n"
        "atoms.get_forces()\natoms.calc.batch([atoms])\natoms.calc.get_descriptors()\n"
        "print(sorted(set(sys.modules) & {'torch', 'e3nn', 'mace', 'nequip'}))"
    )
    assert printed_by(code) == "[]\n"
