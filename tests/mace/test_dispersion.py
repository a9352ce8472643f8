"""D3 dispersion beside a package, against the library dftd3, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from dftd3.interface import DispersionModel, RationalDampingParam, ZeroDampingParam

from mdcg import MDCGCalculator, _core
from mdcg.cli.patch import main
from mdcg.errors import PackageError, UnsupportedProblemError
from mdcg.package.dispersion import BOHR, HARTREE, d3_data, training_functional
from mdcg.package.kernel_file import compile_kernels

from ..engine.small_package import SmallPackage
from ..processes import printed_by

ELEMENTS = ["H", "C", "N", "O", "Na", "Si", "Cl", "Ar", "Fe", "Cs", "Au"]


def bare(path: Path, functional: str = "pbe", elements: list[str] = ELEMENTS) -> str:
    """Write a package whose network gives no energy, so that results are those of dispersion."""
    package = SmallPackage(elements, 3.0)
    package.value("a", "1x0e")
    package.layer("type_rows", out="a", table=package.tensor(np.zeros((len(elements), 1))))
    one, zero = package.tensor(np.ones(1)), package.tensor(np.zeros(1))
    package.layer("energy", x="a", channel=0, scale=one, shift=zero)
    package.manifest["dispersion"], tensors = d3_data(functional, elements)
    package.tensors |= tensors
    return package.write(path)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare(tmp_path_factory.mktemp("d3") / "pbe.mdcg")


def calculator(package: str, damping: str = "bj", **options: Any) -> MDCGCalculator:
    return MDCGCalculator(package, dispersion="pbe", damping=damping, **options)


def reference(atoms: Atoms, damping: str, cutoff: float = 40.0, functional: str = "pbe") -> Any:
    """Return energy, forces and stress of dftd3, without its three-body term; cutoff in Bohr."""
    cell = atoms.cell.array / BOHR if atoms.pbc.any() else None
    model = DispersionModel(atoms.numbers, atoms.positions / BOHR, cell, atoms.pbc)
    model.set_realspace_cutoff(cutoff, cutoff, 40.0)
    kind = RationalDampingParam if damping == "bj" else ZeroDampingParam
    found = model.get_dispersion(kind(method=functional, atm=False), grad=True)
    stress = None
    if atoms.pbc.any():
        stress = found["virial"] * HARTREE / atoms.get_volume()
    return found["energy"] * HARTREE, -found["gradient"] * HARTREE / BOHR, stress


def mixture(rng: np.random.Generator, n: int, length: float, pbc: Any) -> Atoms:
    """Return atoms of all elements at random places that are not too close."""
    cell = np.eye(3) * length + rng.normal(scale=0.05 * length, size=(3, 3))
    places: list[Any] = []
    while len(places) < n:
        place = rng.random(3) @ cell
        if all(np.linalg.norm(place - other) > 1.5 for other in places):
            places.append(place)
    return Atoms(rng.choice(ELEMENTS, n), places, cell=cell, pbc=pbc)


def systems(rng: np.random.Generator) -> dict[str, Atoms]:
    slab = fcc111("Au", (1, 1, 3), vacuum=6.0)
    slab.rattle(0.1, seed=1)
    crystal = bulk("Si")  # 16 Å^3: thousands of images of two atoms
    crystal.rattle(0.1, seed=2)
    far = mixture(rng, 12, 9.0, True)
    far.positions += rng.integers(-4, 5, size=(12, 3)) @ far.cell.array  # not wrapped
    return {
        "molecule": molecule("CH3CH2OH"),
        "atom": Atoms("Cs"),
        "two atoms far apart": Atoms("ArCl", [[0, 0, 0], [0, 0, 20.9]]),
        "beyond the cutoff": Atoms("Ar2", [[0, 0, 0], [0, 0, 21.5]]),
        "cluster": mixture(rng, 40, 11.0, False),
        "box": far,
        "slab": slab,
        "crystal": crystal,
        "wire": mixture(rng, 8, 8.0, [False, False, True]),
    }


def test_the_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network and dispersion come from one read of the file, even if it is replaced meanwhile."""
    path = Path(bare(tmp_path / "pbe.mdcg"))
    open_model = _core.Model

    def open_and_replace(*arguments: Any, **options: Any) -> Any:
        model = open_model(*arguments, **options)
        bare(path, "pbe0")
        return model

    monkeypatch.setattr(_core, "Model", open_and_replace)
    calc = calculator(str(path))
    monkeypatch.undo()
    atoms = molecule("CH3CH2OH")
    energy, forces, _ = reference(atoms, "bj")
    assert calc.get_potential_energy(atoms) == pytest.approx(energy, abs=1e-10)
    np.testing.assert_allclose(calc.get_forces(atoms), forces, rtol=0, atol=1e-9)


@pytest.mark.parametrize("damping", ["bj", "zero"])
def test_against_dftd3(package: str, damping: str, rng: np.random.Generator) -> None:
    calc = calculator(package, damping)
    for name, atoms in systems(rng).items():
        energy, forces, stress = reference(atoms, damping)
        atoms.calc = calc
        error = abs(atoms.get_potential_energy() - energy) / len(atoms)
        assert error < 1e-11, name
        limit = 1e-10 * max(1.0, abs(forces).max())
        np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=limit, err_msg=name)
        if stress is not None:
            found = atoms.get_stress(voigt=False)
            np.testing.assert_allclose(found, stress, rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("functional", "damping"), [("B3-LYP", "bj"), ("r2scan", "bj"), ("revPBE", "zero")]
)
def test_functionals(
    tmp_path: Path, functional: str, damping: str, rng: np.random.Generator
) -> None:
    atoms = mixture(rng, 20, 9.0, False)
    path = bare(tmp_path / "p.mdcg", functional)
    atoms.calc = MDCGCalculator(path, dispersion=functional.lower(), damping=damping)
    energy, forces, _ = reference(atoms, damping, functional=functional)
    assert abs(atoms.get_potential_energy() - energy) < 1e-10
    np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=1e-10)


def test_a_shorter_cutoff(package: str, rng: np.random.Generator) -> None:
    """A shorter dispersion cutoff does not change the cutoff of the coordination numbers."""
    atoms = mixture(rng, 30, 14.0, False)
    atoms.calc = calculator(package, dispersion_cutoff=9.0 * BOHR)
    energy, forces, _ = reference(atoms, "bj", cutoff=9.0)
    assert abs(atoms.get_potential_energy() - energy) < 1e-10
    np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=1e-10)


@pytest.mark.parametrize("damping", ["bj", "zero"])
def test_derivatives(package: str, damping: str, rng: np.random.Generator) -> None:
    """Forces and stress equal finite differences of the energy."""
    atoms = mixture(rng, 5, 30.0, False)
    atoms.positions /= 3
    atoms.pbc = True
    atoms.set_cell(np.eye(3) * 60.0)
    atoms.calc = calculator(package, damping)
    forces = calculate_numerical_forces(atoms, eps=1e-4)
    np.testing.assert_allclose(atoms.get_forces(), forces, rtol=0, atol=1e-8)
    stress = calculate_numerical_stress(atoms, eps=1e-5)
    np.testing.assert_allclose(atoms.get_stress(), stress, rtol=0, atol=1e-12)


def test_parts_of_atoms(package: str, rng: np.random.Generator) -> None:
    atoms = mixture(rng, 30, 10.0, True)
    atoms.calc = calculator(package)
    assert abs(atoms.get_potential_energies().sum() - atoms.get_potential_energy()) < 1e-12
    np.testing.assert_allclose(
        atoms.get_stresses().sum(axis=0), atoms.get_stress(), rtol=0, atol=1e-14
    )
    assert abs(atoms.get_forces().sum(axis=0)).max() < 1e-12


def test_threads_give_the_same_bits(package: str, rng: np.random.Generator) -> None:
    atoms = mixture(rng, 50, 12.0, True)
    one, three = (calculator(package, threads=n).get_forces(atoms) for n in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_batch(package: str, rng: np.random.Generator) -> None:
    images = [mixture(rng, n, 9.0, True) for n in (3, 1, 12)]
    calc = calculator(package)
    wanted = ("energy", "forces", "stress")
    for atoms, found in zip(images, calc.batch(images, wanted), strict=True):
        for name in wanted:
            single = calc.get_property(name, atoms)
            np.testing.assert_allclose(found[name], single, rtol=0, atol=1e-12)


def test_beside_a_model(water: Path, tmp_path: Path, capsys: Any) -> None:
    """Dispersion is stored on conversion, shown by --info, and added only where it is requested."""
    output = tmp_path / "water.mdcg"
    assert main([str(water), "-o", str(output), "--dispersion", "PBE"]) == 0
    assert "D3 dispersion of PBE" in capsys.readouterr().out
    assert main([str(output), "--info"]) == 0
    said = capsys.readouterr().out
    assert "dispersion: D3 of PBE, damping bj or zero, tad-dftd3 0.7." in said
    assert "training functional: not recorded" in said
    plain = tmp_path / "plain.mdcg"
    assert main([str(water), "-o", str(plain)]) == 0
    atoms = molecule("H2O", cell=[6.0, 7.0, 8.0], pbc=True)
    wanted = ("energy", "forces", "stress")
    without, same, added, several = (
        calc.batch([atoms], wanted)[0]
        for calc in (
            MDCGCalculator(plain),
            MDCGCalculator(output),
            MDCGCalculator(output, dispersion="pbe"),
            MDCGCalculator([output, plain], dispersion="pbe"),
        )
    )
    energy, forces, _ = reference(atoms, "bj")
    for name in wanted:
        np.testing.assert_array_equal(same[name], without[name])
        np.testing.assert_allclose(several[name], added[name], rtol=0, atol=1e-12)
        assert np.abs(several[f"{name}_std"]).max() < 1e-12
    assert abs(added["energy"] - without["energy"] - energy) < 1e-11
    np.testing.assert_allclose(added["forces"] - without["forces"], forces, rtol=0, atol=1e-10)
    atoms.calc = MDCGCalculator(output, dispersion="pbe")
    assert "with PBE-D3(bj)" in repr(atoms.calc)
    assert len(atoms.calc.report().packages) == 2
    with pytest.raises(UnsupportedProblemError, match="heat flux of dispersion is not implemented"):
        atoms.calc.get_heat_flux(atoms)


def test_named_kernels_and_copies(package: str, tmp_path: Path) -> None:
    """Kernels from a named file give the same forces, also in a pickled calculator."""
    kernels = tmp_path / "d3.mdcg-kernels"
    kernels.write_bytes(compile_kernels(Path(package), ["native"]))
    atoms = molecule("CH3CH2OH")
    want = calculator(package).get_forces(atoms)
    named = calculator(package, kernels=str(kernels))
    np.testing.assert_array_equal(named.get_forces(atoms), want)
    copy = pickle.loads(pickle.dumps(named))
    np.testing.assert_array_equal(copy.get_forces(atoms), want)


def test_running_needs_no_reference_data(package: str) -> None:
    code = (
        "import sys\n"
        "from ase import Atoms\nfrom mdcg import MDCGCalculator\n"
        f"calc = MDCGCalculator({package!r}, dispersion='pbe')\n"
        "assert calc.get_potential_energy(Atoms('Ar2', [[0, 0, 0], [0, 0, 4]])) < -1e-3\n"
        "assert not {'tad_dftd3', 'tad_mctc', 'dftd3', 'torch'} & set(sys.modules)"
    )
    printed_by(code)


def test_nothing_and_no_distance(package: str) -> None:
    assert calculator(package).get_potential_energy(Atoms()) == 0.0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dispersion": "blyp"}, UnsupportedProblemError, "package holds that of pbe: ask for"),
        ({"dispersion": "pbe", "damping": "op"}, ValueError, "damping is 'op', expected bj"),
        ({"dispersion": "pbe", "dispersion_cutoff": -1.0}, ValueError, "expected a length over 0"),
        ({"dispersion": "pbe", "dispersion_cutoff": np.nan}, ValueError, "dispersion_cutoff is"),
    ],
)
def test_refused_options(
    package: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        MDCGCalculator(package, **options)


def test_refused_models(water: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="dispersion are for packages"):
        MDCGCalculator(water, dispersion="pbe")
    bare(tmp_path / "p.mdcg", "b97m")
    with pytest.raises(UnsupportedProblemError, match="b97m has no parameters, expected bj"):
        MDCGCalculator(tmp_path / "p.mdcg", dispersion="b97m", damping="zero")


def test_refused_energy_weights(package: str) -> None:
    model = _core.Model(package, dispersion="pbe")
    with pytest.raises(_core.EngineError, match="energy_weights are given, which dispersion"):
        model.evaluate(np.eye(3), np.zeros(3, dtype=np.int32), energy_weights=np.ones(3))


@pytest.mark.parametrize(
    ("functional", "types", "message"),
    [
        ("nonsense", ["H"], "'nonsense', which D3 has no parameters for"),
        ("pbe", ["H", "oxygen"], "no reference data for the type oxygen, expected elements"),
        ("pbe", ["Og"], "no reference data for the type Og"),
    ],
)
def test_refused_data(functional: str, types: list[str], message: str) -> None:
    with pytest.raises(UnsupportedProblemError, match=message):
        d3_data(functional, types)


def _set(**fields: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda manifest, _: manifest["dispersion"].update(fields)


def _negative(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    def change(_: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors[f"dispersion.{name}"] = -np.abs(tensors[f"dispersion.{name}"]) - 1.0

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(damping=[]), "damping"),
        (_set(damping={}), "damping"),
        (_set(damping={"bj": 3}), "damping"),
        (_set(damping={"op": {}}), "damping is 'op'"),
        (_set(damping={"bj": {"s6": 1.0}}), "s8"),
        (_set(c6="dispersion.q"), "c6"),
        (_set(c6=None), "c6"),
        (_set(functional=None), "functional"),
        (_set(coordination_cutoff=-1), "cutoff"),
        (_set(coordination_cutoff=1e9), "r_max"),
        (_set(weight_steepness="x"), "steepness"),
        (_negative("references"), "references"),
        (_negative("q"), "q"),
        (lambda manifest, _: manifest.update(dispersion="pbe"), "dispersion"),
    ],
)
def test_damaged_data(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], message: str
) -> None:
    bare(tmp_path / "p.mdcg")
    from mdcg.package.file import encode, read_file

    manifest, tensors = read_file(tmp_path / "p.mdcg")
    manifest, tensors = json.loads(json.dumps(manifest)), dict(tensors)
    change(manifest, tensors)
    (tmp_path / "bad.mdcg").write_bytes(encode(manifest, tensors))
    with pytest.raises(PackageError, match=message):
        read_file(tmp_path / "bad.mdcg")


def test_layers_on_points_and_edges_do_not_mix(tmp_path: Path) -> None:
    package = SmallPackage(["H"], 5.0)
    package.value("cn", "1x0e")
    radii = package.tensor(np.ones(1))
    package.layer("coordination", out="cn", radii=radii, steepness=16.0, cutoff=5.0)
    zbl = {name: package.tensor(np.ones((1, 1))) for name in ("factor", "a", "r_max")}
    package.layer("pair_energy", kind="zbl", coefficients=[1.0], exponents=[1.0], p=6, **zbl)
    path = Path(package.write(tmp_path / "p.mdcg"))
    with pytest.raises(_core.EngineError, match="expected layers that see edges, or layers that"):
        _core.read_package(str(path))


def test_training_functionals() -> None:
    assert training_functional("omat_pbe").startswith("training functional: pbe, by the name")
    assert "r2scan" in training_functional("matpes_r2scan")
    assert "not recorded" in training_functional("Default")
    assert "not recorded" in training_functional(None)
