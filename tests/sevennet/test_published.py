"""SevenNet's trained models, from the wheel, in packages: checkpoint, ASE, LAMMPS, dispersion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ase.build
import numpy as np
import pytest
from ase import Atoms

from mdcg import MDCGCalculator
from mdcg.cli.main import main
from mdcg.package import Package
from mdcg.package.convert import ConversionOptions, convert_checkpoint
from mdcg.package.verification import package_reference, verify_package
from mdcg.patch import load_model, model_info
from mdcg.patch.evaluate import evaluate_structure
from mdcg.patch.systems import Structure

from ..lammps import lmp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TYPES = ("H", "C", "O", "Na", "Cl", "Fe", "Cu")
MODELS = [
    ("7net-l3i5", None),
    ("7net-0", None),
    ("7net-0_22may2024", None),
    ("7net-mf-0", "PBE"),
    ("7net-mf-0", "R2SCAN"),
]


def salt() -> Atoms:
    """Return 64 atoms of rock salt that are displaced, with two more elements."""
    atoms = ase.build.bulk("NaCl", "rocksalt", 5.64, cubic=True) * (2, 2, 2)
    atoms.rattle(0.08, seed=3)
    atoms.symbols[5], atoms.symbols[12] = "O", "H"
    return atoms


@pytest.mark.parametrize(("name", "modal"), MODELS)
def test_same_results_as_the_original(
    name: str, modal: str | None, pretrained: Callable[[str], Path], tmp_path: Path
) -> None:
    """In float64 results agree within 1e-10, in float32 within the original's own errors."""
    path, file = pretrained(name), tmp_path / "p.mdcg"
    model = load_model(path)
    for dtype in ("float64", "float32"):
        package = convert_checkpoint(path, ConversionOptions(TYPES, modal, dtype))
        package.save(file)
        reference = package_reference(package, model, head=modal)
        report = verify_package(file, model, reference=reference)
        assert report.passed, str(report)
        if dtype == "float32":
            continue
        for known, quantity in [(k, q) for k in reference.structures for q in k.truth]:
            errors = [
                d.error
                for d in report.deviations
                if (d.system, d.quantity) == (known.system.name, quantity)
            ]
            assert max(errors) < 1e-10 * known.size(quantity), str(report)


def test_calculator_of_the_library(pretrained: Callable[[str], Path], tmp_path: Path) -> None:
    """The whole model, converted by the command, gives what SevenNetCalculator gives."""
    import warnings

    path, output = pretrained("7net-mf-0"), tmp_path / "mf.mdcg"
    assert main(["patch", str(path), "-o", str(output), "--modal", "R2SCAN"]) == 0
    assert len(Package.open(output).type_names) == 89
    assert Package.open(output).manifest["head"] == "R2SCAN"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sevenn.calculator import SevenNetCalculator

        original = SevenNetCalculator(str(path), device="cpu", modal="R2SCAN")
        atoms = salt()
        atoms.calc = original
        want = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    atoms.calc = MDCGCalculator(output)
    found = atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress()
    assert abs(found[0] - want[0]) < 1e-6 * abs(want[0])
    assert np.abs(found[1] - want[1]).max() < 2e-5 * np.abs(want[1]).max()
    assert np.abs(found[2] - want[2]).max() < 2e-5 * np.abs(want[2]).max()


@pytest.fixture(scope="module")
def package(pretrained: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return SevenNet-0 in float64 with the dispersion of PBE."""
    file = tmp_path_factory.mktemp("package") / "7net-0.mdcg"
    options = ConversionOptions(TYPES, dtype="float64", dispersion="pbe")
    convert_checkpoint(pretrained("7net-0"), options).save(file)
    return file


@pytest.mark.parametrize("ranks", [1, 2])
def test_lammps(package: Path, ranks: int, tmp_path: Path) -> None:
    water = lmp.water(3)
    found = lmp.single_point(tmp_path, water, package, ranks=ranks)
    lmp.compare(found, lmp.reference(water, package), lmp.TOLERANCE["float64"])


def test_batches(package: Path) -> None:
    several = [salt(), salt()[:7], ase.build.bulk("Cu", cubic=True) * (2, 1, 1)]
    several[1].pbc = False
    calculator = MDCGCalculator(package)
    for atoms, found in zip(several, calculator.batch(several), strict=True):
        atoms.calc = calculator
        assert abs(found["energy"] - atoms.get_potential_energy()) < 1e-9
        assert np.abs(found["forces"] - atoms.get_forces()).max() < 1e-10


def test_the_table_follows_the_kink_of_the_envelope(
    package: Path, pretrained: Callable[[str], Path], tmp_path: Path
) -> None:
    """The slope of the force jumps at 4.5 Å, where the table has a break."""
    options = ConversionOptions(TYPES, dtype="float64", radial="exact")
    convert_checkpoint(pretrained("7net-0"), options).save(tmp_path / "exact.mdcg")
    atoms, forces = Atoms("NaCl", np.zeros((2, 3))), []
    for file in (tmp_path / "exact.mdcg", package):
        atoms.calc, found = MDCGCalculator(file), []
        for k in range(-20, 21):
            atoms.positions[1, 2] = 4.5 + 1e-4 * k
            found.append(atoms.get_forces()[1, 2])
        forces.append(np.array(found))
    exact, table = forces
    bends = np.abs(np.diff(exact, n=2))
    assert np.argmax(bends) == 19
    assert bends[19] > 100 * np.delete(bends, 19).max()
    # errors of a table are relative to the largest derivative at any length; found: 1.5e-10
    assert np.abs(table - exact).max() < 1e-9 * np.abs(exact).max()


def test_dispersion_with_the_cutoffs_of_the_library(package: Path) -> None:
    """D3 of SevenNetD3Calculator: coordination to 40 Bohr, pairs to sqrt(9000) Bohr."""
    from ase.units import Bohr
    from dftd3.ase import DFTD3

    atoms = salt()[:9]
    atoms.pbc = False
    atoms.cell = None
    plain, whole = (
        MDCGCalculator(package, **options)
        for options in ({}, {"dispersion": "pbe", "dispersion_cutoff": 9000**0.5 * Bohr})
    )
    atoms.calc = plain
    energy = atoms.get_potential_energy()
    atoms.calc = whole
    added = atoms.get_potential_energy() - energy
    atoms.calc = DFTD3(method="PBE", damping="d3bj")
    assert abs(added - atoms.get_potential_energy()) < 1e-6


def test_rounding_of_small_cells(pretrained: Callable[[str], Path], tmp_path: Path) -> None:
    """In float32, energies of many cells of two atoms are no less exact than SevenNet's own."""
    path, modal = pretrained("7net-mf-0"), "R2SCAN"
    model = load_model(path)
    calculators = []
    for dtype in ("float64", "float32"):
        options = ConversionOptions(
            TYPES, modal, dtype, radial="exact" if dtype[-1] == "4" else None
        )
        convert_checkpoint(path, options).save(tmp_path / f"{dtype}.mdcg")
        calculators.append(MDCGCalculator(tmp_path / f"{dtype}.mdcg"))
    exact, single = calculators
    rng, info, errors = np.random.default_rng(0), model_info(model), []
    for _ in range(40):
        cell = (3.2 + rng.uniform(0, 1.2)) * np.eye(3) + rng.normal(scale=0.15, size=(3, 3))
        places = [[0, 0, 0], [0.5, 0.5, 0.5]] @ cell + rng.normal(scale=0.15, size=(2, 3))
        atoms = Atoms(rng.choice(TYPES, 2), places, cell=cell, pbc=True)
        system = Structure("", atoms.numbers, atoms.positions, cell, (True,) * 3)
        own = evaluate_structure(model, info, system, modal)[1]["energy"].item()
        want = exact.get_potential_energy(atoms)
        errors.append([single.get_potential_energy(atoms) - want, own - want])
    ours, own = np.sqrt(np.mean(np.square(errors), axis=0)) / 2
    assert ours < 1.2 * own < 2e-6  # found: 4.6e-7 and 6.1e-7 eV per atom
