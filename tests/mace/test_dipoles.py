"""Packages of MACE models that predict dipoles, with energies and without."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError

from mdcg import MDCGCalculator, _core
from mdcg.errors import PackageError
from mdcg.package import Package, convert_model
from mdcg.package.verification import verify_package

from ..lammps.lmp import head, run_input, water, write_data

KINDS = {"EnergyDipolesMACE": "EnergyDipoleMACE", "AtomicDipolesMACE": "DipoleMACE"}
LIMIT = {"float64": 1e-10, "float32": 2e-5}


def model_of(build: Any, kind: str, seed: int = 0) -> torch.nn.Module:
    from e3nn import o3

    energy = kind == "EnergyDipolesMACE"
    found: torch.nn.Module = build(
        model_class=kind,
        seed=seed,
        atomic_energies=np.array([-1.5, -7.25]) if energy else None,
        MLP_irreps=o3.Irreps("4x0e+4x1o" if energy else "4x1o"),
    )
    return found


def structures() -> list[Atoms]:
    """Return a molecule with fixed charges, two that are apart, and a crystal."""
    charged = molecule("H2O")
    charged.set_array("Qs", np.array([-0.8, 0.4, 0.4]))
    apart = molecule("H2O") + molecule("H2O")
    apart.positions[3:] += [0.0, 0.5, 3.0]
    return [charged, apart, water(2, seed=4)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_the_model(kind: str, dtype: str, build: Any, tmp_path: Path) -> None:
    from mace.calculators import MACECalculator
    from mace.modules.utils import compute_fixed_charge_dipole

    model = model_of(build, kind).to(getattr(torch, dtype))
    package = convert_model(model)
    package.save(tmp_path / "p.mdcg")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    assert "dipole" in report.worst()
    assert ("energy" in report.worst()) == (kind == "EnergyDipolesMACE")
    exact = copy.deepcopy(model).double()
    original = MACECalculator(
        models=[exact], device="cpu", default_dtype="float64", model_type=KINDS[kind]
    )
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    images = structures()
    batch = calc.batch(images, ["dipole"])
    for atoms, together in zip(images, batch, strict=True):
        atoms.calc = original
        want = atoms.get_dipole_moment()
        if "Qs" in atoms.arrays:  # MACE's calculator declares these charges and does not read them
            given = (torch.tensor(atoms.arrays[name]) for name in ("Qs", "positions"))
            whole = torch.zeros(len(atoms), dtype=torch.int64)
            want = want + compute_fixed_charge_dipole(*given, whole, 1).numpy()[0]
        found = calc.get_property("dipole", atoms)
        scale = max(0.1, float(np.abs(want).max()))
        np.testing.assert_allclose(found, want, rtol=0, atol=LIMIT[dtype] * scale)
        np.testing.assert_allclose(together["dipole"], found, rtol=0, atol=LIMIT[dtype] * scale)
        dipoles = calc.results["dipoles"]
        assert dipoles.shape == (len(atoms), 3)
        if "Qs" not in atoms.arrays:
            np.testing.assert_allclose(dipoles.sum(axis=0), found, atol=1e-12)
        if kind == "EnergyDipolesMACE":
            forces = atoms.get_forces()
            size = float(np.abs(forces).max())
            np.testing.assert_allclose(calc.get_forces(atoms), forces, atol=LIMIT[dtype] * size)
            energy = calc.get_potential_energy(atoms)
            assert abs(energy - atoms.get_potential_energy()) < LIMIT[dtype] * 10 * len(atoms)
    assert (
        calc.get_descriptors(images[0]).shape[1]
        == calc._backend._members[0].model.descriptor_width - 3
    )
    assert not calc.get_property("dipole", Atoms()).any()


def test_descriptors_in_lammps(build: Any, tmp_path: Path) -> None:
    """As in ASE, dipoles are not among the descriptors."""
    convert_model(model_of(build, "EnergyDipolesMACE")).save(tmp_path / "p.mdcg")
    atoms = water(2)
    write_data(tmp_path / "test.data", atoms)
    text = head(tmp_path / "p.mdcg") + "compute d all mdcg/descriptors\n"
    text += "dump d all custom 1 out.dump id c_d[*]\ndump_modify d sort id format float %.17g\n"
    rows = run_input(tmp_path, text + "run 0\n", ranks=2).dump()[0]
    want = MDCGCalculator(tmp_path / "p.mdcg").get_descriptors(atoms)
    np.testing.assert_allclose(rows[:, 1:], want, rtol=0, atol=1e-10 * np.abs(want).max())


def test_dipoles_turn_with_the_molecule(build: Any, tmp_path: Path) -> None:
    convert_model(model_of(build, "AtomicDipolesMACE")).save(tmp_path / "p.mdcg")
    calc, atoms = MDCGCalculator(tmp_path / "p.mdcg"), molecule("H2O")
    before = calc.get_property("dipole", atoms)
    assert np.linalg.norm(before) > 1e-3
    assert abs(before[0]) < 1e-12  # the plane of the molecule is perpendicular to x
    atoms.rotate(90, "z")
    after = calc.get_property("dipole", atoms)
    np.testing.assert_allclose(after, [-before[1], before[0], before[2]], atol=1e-12)


def test_charges_that_change(build: Any, tmp_path: Path) -> None:
    convert_model(model_of(build, "AtomicDipolesMACE")).save(tmp_path / "p.mdcg")
    calc, atoms = MDCGCalculator(tmp_path / "p.mdcg"), structures()[0]
    before = calc.get_property("dipole", atoms)
    atoms.arrays["Qs"] *= 2
    assert calc.check_state(atoms)
    moved = calc.get_property("dipole", atoms) - before
    charges = atoms.arrays["Qs"] / 2
    np.testing.assert_allclose(moved, charges @ atoms.positions / 0.2081943, rtol=1e-6, atol=1e-12)


def test_committees(build: Any, tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.mdcg" for seed in range(2)]
    for seed, path in enumerate(paths):
        convert_model(model_of(build, "EnergyDipolesMACE", seed)).save(path)
    atoms = structures()[1]
    single = [MDCGCalculator(path).get_property("dipole", atoms) for path in paths]
    found = MDCGCalculator(paths).get_property("dipole", atoms)
    convert_model(model_of(build, "AtomicDipolesMACE")).save(tmp_path / "dipoles.mdcg")
    with pytest.raises(ValueError, match="gives dipoles and no energies"):
        MDCGCalculator([*paths, tmp_path / "dipoles.mdcg"])
    assert np.abs(single[0] - single[1]).max() > 1e-3
    np.testing.assert_allclose(found, np.mean(single, axis=0), atol=1e-12)


def test_models_without_energies(build: Any, tmp_path: Path) -> None:
    package = convert_model(model_of(build, "AtomicDipolesMACE"))
    package.save(tmp_path / "p.mdcg")
    calc, atoms = MDCGCalculator(tmp_path / "p.mdcg"), molecule("H2O")
    assert calc.implemented_properties == ["dipole"]
    for ask in (calc.get_potential_energy, calc.get_forces):
        with pytest.raises(PropertyNotImplementedError, match="not implemented; available: dipole"):
            ask(atoms)
    model = _core.Model(str(tmp_path / "p.mdcg"))
    assert not model.has_energy
    with pytest.raises(_core.EngineError, match="gives dipoles, and no energies: ask for descr"):
        model.evaluate(atoms.positions, np.array([0, 1, 1]))
    for value, said in (("node_feats_0", "node_feats_0"), (None, "null"), (3, "3")):
        manifest = json.loads(json.dumps(package.manifest)) | {"dipoles": value}
        with pytest.raises(PackageError, match=f'dipoles is "?{said}"?, expected the name of the'):
            Package(manifest, package.tensors).check()
