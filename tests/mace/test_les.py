"""Packages of MACELES models: a long-range sum of latent charges beside MACE."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import InputError, PropertyNotImplementedError

from mdcg import MDCGCalculator
from mdcg.errors import UnsupportedProblemError
from mdcg.package import convert_model
from mdcg.package.convert import ConversionOptions
from mdcg.package.verification import verify_package
from mdcg.patch import copy_model, load_model, patch_model, verify_patch

from ..lammps.lmp import package as package_of
from ..lammps.lmp import water

STUBS = Path(__file__).parents[1] / "stubs"
LES = package_of("mace_les", "float64")
ARGUMENTS = {"sigma": 0.9, "dl": 1.8, "remove_self_interaction": False}


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(STUBS))


def model_of(build: Any, arguments: dict[str, Any] | None = None, **changes: Any) -> Any:
    settings = {"atomic_inter_scale": 1.3, "atomic_inter_shift": 0.2, **changes}
    return build(model_class="MACELES", les_arguments=arguments or {}, **settings)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("arguments", [{}, ARGUMENTS], ids=["usual", "others"])
def test_results_are_those_of_the_model(
    dtype: str, arguments: dict[str, Any], build: Any, tmp_path: Path
) -> None:
    model = model_of(build, arguments).to(getattr(torch, dtype))
    package = convert_model(model)
    assert package.layers[-1]["type"] == "ewald"
    assert package.layers[-1]["spacing"] == arguments.get("dl", 2.0)
    package.save(tmp_path / "p.mdcg")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    assert {"energy", "forces", "stress", "charges"} <= {*report.worst()}
    assert {d.system for d in report.deviations if d.quantity == "stress"} == {
        *("cubic", "triclinic", "self-images")
    }
    assert "compared with differences of MACE's energies" in report.note


def test_heads(build: Any, tmp_path: Path) -> None:
    heads = {"heads": ["a", "b"], "atomic_energies": np.array([[-1.5, -7.25], [-1.0, -6.0]])}
    scales = {"atomic_inter_scale": [1.3, 0.8], "atomic_inter_shift": [0.2, 0.1]}
    model = model_of(build, **heads, **scales)
    found = []
    for head in ("a", "b"):
        package = convert_model(model, ConversionOptions(head=head))
        package.save(tmp_path / f"{head}.mdcg")
        report = verify_package(tmp_path / f"{head}.mdcg", model, head=head)
        assert report.passed, str(report)
        calc = MDCGCalculator(tmp_path / f"{head}.mdcg")
        found.append(calc.get_property("charges", water(1, seed=3)))
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_calculator(build: Any, tmp_path: Path) -> None:
    convert_model(model_of(build)).save(tmp_path / "p.mdcg")
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert calc.implemented_properties[-2:] == ["stress", "charges"]
    atoms = water(1, seed=4)
    atoms.calc = calc
    forces, stress, charges = atoms.get_forces(), atoms.get_stress(), atoms.get_charges()
    assert charges.shape == (len(atoms),)
    assert calc.get_descriptors(atoms).shape == (len(atoms), 20)
    assert atoms.get_potential_energy() == pytest.approx(atoms.get_potential_energies().sum())
    images = [molecule("H2O"), atoms, Atoms()]
    batch = calc.batch(images, ["forces", "charges"])
    np.testing.assert_array_equal(batch[1]["charges"], charges)
    np.testing.assert_allclose(batch[1]["forces"], forces, rtol=0, atol=1e-12)
    assert batch[2]["charges"].shape == (0,)
    moved = atoms.copy()  # in a cell that changes, with the list of before
    moved.set_cell(1.001 * atoms.cell.array, scale_atoms=True)
    fresh = MDCGCalculator(tmp_path / "p.mdcg", skin=0.0)
    np.testing.assert_allclose(calc.get_forces(moved), fresh.get_forces(moved), atol=1e-12)
    assert np.abs(calc.get_stress(moved) - stress).max() > 1e-6
    atoms.pbc = [True, True, False]
    with pytest.raises(InputError, match="periodic along 2 directions, expected 0 or 3"):
        atoms.get_potential_energy()
    with pytest.raises(
        PropertyNotImplementedError, match="stresses not implemented, which a long-range"
    ):
        atoms.get_stresses()
    with pytest.raises(UnsupportedProblemError, match=r"has a long-range sum, .*heat fluxes"):
        calc.get_heat_flux(water(1, seed=4))
    with pytest.raises(
        UnsupportedProblemError, match=r"not divided into domains: leave memory out"
    ):
        MDCGCalculator(tmp_path / "p.mdcg", memory="50 %")


def test_committees(build: Any, tmp_path: Path) -> None:
    """A committee gives the mean of the charges, and their deviation."""
    paths = [tmp_path / f"{k}.mdcg" for k in range(2)]
    for k, path in enumerate(paths):
        model = model_of(build)
        with torch.no_grad():
            for parameter in model.les_readouts.parameters():
                parameter.mul_(1.0 + 0.5 * k)
        convert_model(model).save(path)
    atoms = water(1, seed=4)
    single = np.stack([MDCGCalculator(path).get_property("charges", atoms) for path in paths])
    calc = MDCGCalculator(paths)
    np.testing.assert_allclose(calc.get_property("charges", atoms), single.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(calc.results["charges_std"], single.std(axis=0), rtol=1e-10)
    np.testing.assert_array_equal(calc.results["charges_committee"], single)
    assert single.std(axis=0).min() > 1e-6
    batch = calc.batch([atoms], ["charges"])[0]
    np.testing.assert_allclose(batch["charges_std"], single.std(axis=0), rtol=1e-10)


def test_fixed_waves(build: Any, tmp_path: Path) -> None:
    """The calculator keeps the waves of its first cell; a torch model has no such option."""
    model = model_of(build)
    convert_model(model).save(tmp_path / "p.mdcg")
    calc = MDCGCalculator(tmp_path / "p.mdcg", fixed_waves=True)
    atoms = water(2, seed=4)
    usual = MDCGCalculator(tmp_path / "p.mdcg")
    assert calc.get_potential_energy(atoms) == usual.get_potential_energy(atoms)
    atoms.set_cell(1.1 * atoms.cell.array, scale_atoms=True)
    assert abs(calc.get_potential_energy(atoms) - usual.get_potential_energy(atoms)) > 1e-7
    atoms.set_cell(1.3 * atoms.cell.array, scale_atoms=True)
    with pytest.raises(InputError, match=r"this cell is strained by .* a new calculator in ASE"):
        calc.get_potential_energy(atoms)
    with pytest.raises(ValueError, match="fixed_waves and dispersion are for packages"):
        MDCGCalculator(model, fixed_waves=True)


def test_fixed_waves_of_derivatives_and_committees(tmp_path: Path) -> None:
    """All images of a Hessian have the waves of the first cell; members without a sum have none."""
    short = package_of("mace", "float64")
    atoms = water(1, seed=4)
    larger = atoms.copy()
    larger.set_cell(1.12 * atoms.cell.array, scale_atoms=True)  # waves enter

    def moved(step: float) -> Atoms:
        found = larger.copy()
        found.positions[2, 1] += step
        return found

    for paths in ([LES], [short, LES]):
        calc = MDCGCalculator(paths, fixed_waves=True)
        usual = MDCGCalculator(paths)
        assert calc.get_potential_energy(atoms) == usual.get_potential_energy(atoms)
        with pytest.raises(UnsupportedProblemError, match="fixed_waves is set, and a batch has"):
            calc.batch([atoms])
        found = calc.get_hessian(larger)
        up, down = (calc.get_forces(moved(step)) for step in (1e-3, -1e-3))
        row = (down - up).reshape(-1) / 2e-3
        np.testing.assert_allclose(0.5 * (found[7] + found[:, 7]), found[7], rtol=0, atol=1e-12)
        np.testing.assert_allclose(row, found[7], rtol=0, atol=1e-4)
        assert np.abs(found - usual.get_hessian(larger)).max() > 1e-5
    with pytest.raises(UnsupportedProblemError, match=r"no long-range sum: leave it out"):
        MDCGCalculator([short, short], fixed_waves=True)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("compute_bec", r"the model has Born effective charges .compute_bec."),
        ("les.use_atomwise", r"les has a network of its own for the charges .use_atomwise."),
        ("les.use_fixed_atomic_charges", "les has fixed charges of the elements"),
        ("les.use_atomic_alpha", "les has polarizabilities"),
        ("les_dipole_readouts", "has les_dipole_readouts, such as readouts of multipoles"),
        ("les.ewald", "les.ewald has no sigma, expected the sum of the package les"),
    ],
)
def test_refusals(part: str, message: str, build: Any) -> None:
    model = model_of(build)
    *modules, name = part.split(".")
    value = torch.nn.Identity() if name in ("ewald", "les_dipole_readouts") else True
    setattr(model.les if modules else model, name, value)
    with pytest.raises(UnsupportedProblemError, match=message):
        convert_model(model)


def test_readouts_of_charges_are_needed(build: Any) -> None:
    model = model_of(build)
    model.les_readouts = torch.nn.ModuleList()
    with pytest.raises(UnsupportedProblemError, match="and no readouts of charges"):
        convert_model(model)


def test_files_of_the_fork(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MACELES was in another module of mace; its layers can also be patched in place."""
    from mace.modules import models

    model = model_of(build)
    with monkeypatch.context() as patch:
        patch.setattr(models, "MACELES", type(model), raising=False)
        patch.setattr(type(model), "__module__", models.__name__)
        torch.save(model, tmp_path / "fork.model")
    loaded = load_model(tmp_path / "fork.model")
    assert type(loaded) is type(model)
    patched = copy_model(loaded)
    patch_model(patched)
    report = verify_patch(loaded, patched)
    assert report.passed, str(report)
    assert "charges" in report.worst()


@pytest.mark.slow
def test_checkpoints(build: Any, tmp_path: Path) -> None:
    """The command converts a checkpoint, says what was compared, and needs the package les."""
    path = tmp_path / "les.model"
    torch.save(model_of(build), path)

    def run(*arguments: str, stubs: bool = True) -> subprocess.CompletedProcess[str]:
        code = f"import sys; sys.path.insert(0, {str(STUBS)!r}); " if stubs else "import sys; "
        code += "from mdcg.cli.patch import main; sys.exit(main())"
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    done = run(str(path), "-o", "p.mdcg")
    assert done.returncode == 0, done.stderr
    assert "compared with differences of MACE's energies" in done.stdout
    shown = run("p.mdcg", "--info", stubs=False).stdout
    assert "gives energies and charges of atoms" in shown
    assert "long range: charges with sigma 1 Å, dl 2 Å, norm factor 90.4756 eV Å/e²" in shown
    done = run(str(path), "-o", "q.mdcg", stubs=False)
    assert done.returncode == 5
    assert "'les', which is not installed: pip install git+https://github.com/" in done.stderr


def test_openmm() -> None:
    """All atoms of a periodic system, or a part of one that is not."""
    openmm = pytest.importorskip("openmm")
    from mdcg.openmm import add_force

    from .test_openmm import bare, evaluate, topology_of

    atoms = water(2, seed=3)
    atoms.calc = MDCGCalculator(LES, threads=1)
    system = bare(atoms)
    add_force(system, topology_of(atoms), LES, threads=1)
    energy, forces = evaluate(system, atoms)
    assert energy == pytest.approx(atoms.get_potential_energy(), rel=1e-9)
    np.testing.assert_allclose(forces, atoms.get_forces(), atol=1e-6)
    part = {"atoms": range(3), "threads": 1}
    with pytest.raises(UnsupportedProblemError, match=r"leave out atoms, or set periodic=False"):
        add_force(bare(atoms), topology_of(atoms), LES, **part)
    force = add_force(bare(atoms), topology_of(atoms), LES, **part, periodic=False)
    assert isinstance(force, openmm.PythonForce)


def test_torchsim() -> None:
    """Systems of a state have the results of the calculator."""
    ts = pytest.importorskip("torch_sim", reason="needs Python 3.11", exc_type=ImportError)
    from mdcg.torchsim import MDCGModel

    model = MDCGModel(LES, "cpu", threads=1)
    images = [water(1, seed=5), water(2, seed=6)]
    found = model(ts.io.atoms_to_state(images, model.device, model.dtype))
    calc = MDCGCalculator(LES, threads=1)
    forces = np.concatenate([calc.get_forces(atoms) for atoms in images])
    np.testing.assert_allclose(found["forces"].numpy(), forces, rtol=0, atol=1e-10)
    for number, atoms in enumerate(images):
        stress = calc.get_property("stress", atoms)[[0, 5, 4, 5, 1, 3, 4, 3, 2]].reshape(3, 3)
        np.testing.assert_allclose(found["stress"][number].numpy(), stress, rtol=0, atol=1e-10)
