"""MDCGCalculator: values against MACE's own calculator, ASE's rules, and failures."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import (
    CalculationFailed,
    InputError,
    all_changes,
)
from ase.calculators.fd import FiniteDifferenceCalculator, calculate_numerical_forces
from ase.md.verlet import VelocityVerlet
from numpy.testing import assert_allclose, assert_array_equal

from mdcg import MDCGCalculator, patch_model, unpatch_model
from mdcg.patch import load_model

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
CHECKPOINT = DATA / "water.model"


@pytest.fixture(scope="module")
def original() -> torch.nn.Module:
    """Return the checkpoint as MACE has it; tests must not change it."""
    return load_model(CHECKPOINT)


@pytest.fixture(scope="module")
def patched_file(tmp_path_factory: pytest.TempPathFactory, original: torch.nn.Module) -> Path:
    """Return a patched checkpoint as mdcg-patch writes it."""
    model = copy.deepcopy(original)
    patch_model(model)
    path = tmp_path_factory.mktemp("patched") / "water.patched.model"
    torch.save(model, path)
    return path


@pytest.fixture
def calc(patched_file: Path) -> MDCGCalculator:
    return MDCGCalculator(patched_file)


def mace_calculator(model: torch.nn.Module, **options: object) -> object:
    """Return MACE's own calculator over a copy of a model, undoing what its import does."""
    before = os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    from mace.calculators import MACECalculator

    if before is None:
        os.environ.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    options = {"device": "cpu", "default_dtype": dtype, **options}
    return MACECalculator(models=[copy.deepcopy(model)], **options)


def liquid(number: int = 192) -> Atoms:
    """Return the first molecules of the water box, in its cell."""
    return ase.io.read(DATA / "water192.xyz")[:number]


def small_box() -> Atoms:
    """Return eight molecules in a periodic cell that is just large enough for them."""
    atoms = molecule("H2O")
    atoms.set_cell([3.1, 3.1, 3.1])
    atoms.pbc = True
    atoms.center()
    atoms = atoms * (2, 2, 2)
    atoms.rattle(0.06, seed=3)
    return atoms


def with_cell(atoms: Atoms, cell: object, pbc: object) -> Atoms:
    atoms.set_cell(cell)
    atoms.pbc = pbc
    return atoms


TRICLINIC = [[6.4, 0.0, 0.0], [1.6, 6.2, 0.0], [-1.1, 2.0, 6.6]]
SYSTEMS: dict[str, Callable[[], Atoms]] = {
    "water": liquid,
    "small box": small_box,
    "molecule": lambda: with_cell(liquid(9), None, False),
    "molecule with an unused cell": lambda: with_cell(liquid(9), [4.0, 5.0, 6.0], False),
    "slab": lambda: with_cell(small_box(), [6.2, 6.2, 30.0], (True, True, False)),
    "slab without third vector": lambda: with_cell(small_box(), [6.2, 6.2, 0.0], (1, 1, 0)),
    "wire": lambda: with_cell(small_box(), [0.0, 6.3, 0.0], (0, 1, 0)),
    "triclinic": lambda: with_cell(small_box(), TRICLINIC, True),
    "left-handed": lambda: with_cell(small_box(), np.array(TRICLINIC)[[1, 0, 2]], True),
    "smaller than the cutoff": lambda: with_cell(liquid(3), np.diag([3.2, 3.4, 3.3]), True),
    "one atom and its images": lambda: with_cell(Atoms("O"), np.diag([2.6, 2.7, 2.8]), True),
    "one atom": lambda: Atoms("O"),
    "no neighbours": lambda: with_cell(Atoms("OH", [[0, 0, 0], [9, 9, 9]]), np.eye(3) * 20, True),
    "atom apart": lambda: with_cell(liquid(9), None, False) + Atoms("O", [[40, 0, 0]]),
}


# ---- values ----


@pytest.mark.parametrize("name", SYSTEMS)
def test_equals_mace_calculator(name: str, calc: MDCGCalculator, original: torch.nn.Module) -> None:
    atoms, wanted = SYSTEMS[name](), SYSTEMS[name]()
    atoms.calc, wanted.calc = calc, mace_calculator(original)
    assert_allclose(atoms.get_potential_energy(), wanted.get_potential_energy(), atol=1e-10, rtol=0)
    assert_allclose(atoms.get_forces(), wanted.get_forces(), atol=1e-10)
    assert_allclose(atoms.get_potential_energies(), wanted.get_potential_energies(), atol=1e-10)
    if atoms.pbc.all():
        assert_allclose(atoms.get_stress(), wanted.get_stress(), atol=1e-10)


@pytest.mark.parametrize("name", ["small box", "triclinic", "left-handed"])
def test_finite_differences(name: str, calc: MDCGCalculator) -> None:
    atoms = with_cell(liquid(6), SYSTEMS[name]().cell.array * 0.75, True)  # with self-images
    atoms.calc = calc
    forces, stress = atoms.get_forces(), atoms.get_stress()
    atoms.calc = FiniteDifferenceCalculator(calc, eps_disp=3e-5, eps_strain=1e-5)
    assert_allclose(atoms.get_forces(), forces, atol=5e-7)
    assert_allclose(atoms.get_stress(), stress, atol=5e-8)


@pytest.mark.parametrize("name", ["molecule", "slab", "wire"])
def test_finite_differences_of_open_systems(name: str, calc: MDCGCalculator) -> None:
    atoms = SYSTEMS[name]()[:9]
    atoms.calc = calc
    numeric = calculate_numerical_forces(atoms, eps=3e-5, force_consistent=True)
    assert_allclose(numeric, atoms.get_forces(), atol=5e-7)


def test_properties_belong_together(calc: MDCGCalculator) -> None:
    atoms = small_box()
    atoms.calc = calc
    energy = atoms.get_potential_energy()
    assert isinstance(energy, float)
    assert atoms.get_potential_energy(force_consistent=True) == energy
    assert atoms.get_potential_energies().shape == (24,)
    assert atoms.get_potential_energies().sum() == pytest.approx(energy, rel=1e-14)
    assert atoms.get_forces().shape == (24, 3)
    assert_allclose(atoms.get_forces().sum(axis=0), 0.0, atol=1e-12)
    assert atoms.get_stress().shape == (6,)
    found = calc.calculate_properties(atoms, ["energy", "forces", "stress"])
    assert found["energy"] == pytest.approx(energy, rel=1e-14)


def test_atoms_that_flew_off_do_not_matter(calc: MDCGCalculator) -> None:
    near, far = with_cell(liquid(9), [12, 12, 0], (1, 1, 0)), Atoms("O", [[1e3, -5e5, 3e7]])
    near.calc, far.calc = calc, calc
    energy = near.get_potential_energy() + far.get_potential_energy()
    forces = near.get_forces()
    both = near + far
    both.calc = calc
    assert both.get_potential_energy() == pytest.approx(energy, abs=1e-10)
    assert_allclose(both.get_forces()[:9], forces, atol=1e-10)


def test_pressure_has_the_right_sign(calc: MDCGCalculator) -> None:
    atoms = small_box()
    atoms.calc = calc
    volume, energies = atoms.get_volume(), []
    cell = atoms.cell.array.copy()
    trace = atoms.get_stress()[:3].sum()
    for scale in (1 - 1e-5, 1 + 1e-5):
        atoms.set_cell(cell * scale, scale_atoms=True)
        energies.append(atoms.get_potential_energy())
    assert trace == pytest.approx((energies[1] - energies[0]) / 2e-5 / volume, abs=1e-6)


def test_float32_beside_float64(patched_file: Path, original: torch.nn.Module) -> None:
    atoms = small_box()
    single = MDCGCalculator(patched_file, dtype="float32")
    assert single.dtype == torch.float32
    assert next(single.model.parameters()).dtype == torch.float32
    double = MDCGCalculator(patched_file, dtype=torch.float64)
    exact, rough = atoms.copy(), atoms.copy()
    exact.calc, rough.calc = double, single
    wanted = atoms.copy()
    wanted.calc = mace_calculator(original, default_dtype="float32")
    limit = 3 * np.abs(wanted.get_forces() - exact.get_forces()).max() + 1e-6
    assert np.abs(rough.get_forces() - exact.get_forces()).max() < limit
    assert rough.get_forces().dtype == np.float64
    assert rough.get_potential_energy() == pytest.approx(exact.get_potential_energy(), abs=2e-5)
    assert rough.get_potential_energies().sum() == pytest.approx(rough.get_potential_energy())
    assert_allclose(rough.get_stress(), exact.get_stress(), atol=1e-5)


# ---- only what is asked ----


class Counting(torch.nn.Module):
    """Pass calls on to a model and note what was asked for."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.inner = model
        self.calls: list[tuple[bool, bool, bool]] = []
        for name in ("atomic_numbers", "r_max", "heads", "atomic_energies_fn"):
            setattr(self, name, getattr(model, name))

    def forward(self, data: dict, **options: bool) -> dict:
        self.calls.append(
            (options["compute_force"], options["compute_stress"], torch.is_grad_enabled())
        )
        return self.inner(data, **options)


def test_computes_what_is_asked_and_no_more(original: torch.nn.Module) -> None:
    model = Counting(original)
    atoms = small_box()
    atoms.calc = MDCGCalculator(model)
    atoms.get_potential_energy()
    atoms.get_potential_energies()
    assert model.calls == [(False, False, False)], "an energy needs no backward pass"
    assert set(atoms.calc.results) == {"energy", "free_energy", "energies"}
    atoms.get_forces()
    assert model.calls.pop() == (True, False, True)
    assert "stress" not in atoms.calc.results
    atoms.get_stress()
    atoms.get_forces()
    atoms.get_potential_energy()
    assert [call[1] for call in model.calls[1:]] == [True]


def test_constant_pressure_runs_need_one_evaluation_per_step(original: torch.nn.Module) -> None:
    model = Counting(original)
    atoms = small_box()
    atoms.calc = MDCGCalculator(model)
    for _ in range(4):
        atoms.rattle(0.001)
        atoms.get_forces()
        atoms.get_stress()
    assert len(model.calls) == 5, "the first step does not know yet that stress will be wanted"
    atoms.rattle(0.001)
    atoms.get_potential_energy()
    assert model.calls[-1] == (False, False, False)
    atoms.rattle(0.001)
    atoms.get_forces()
    assert model.calls[-1][:2] == (True, False)


def test_magnetic_moments_and_charges_do_not_matter(original: torch.nn.Module) -> None:
    model = Counting(original)
    atoms = small_box()
    atoms.calc = MDCGCalculator(model)
    atoms.get_forces()
    atoms.set_initial_magnetic_moments(np.ones(len(atoms)))
    atoms.info["note"] = "nothing to the model"
    atoms.get_forces()
    assert len(model.calls) == 1


# ---- the skin ----


def test_skin_changes_nothing_along_md(patched_file: Path) -> None:
    start = small_box()
    runs = []
    for skin in (0.0, 0.5, 1.5):
        atoms = start.copy()
        atoms.calc = MDCGCalculator(patched_file, skin=skin)
        rng = np.random.default_rng(7)
        atoms.set_momenta(rng.normal(size=(24, 3)) * 0.2)
        VelocityVerlet(atoms, 0.5 * units.fs).run(60)
        runs.append((atoms.positions, atoms.get_forces(), atoms.calc.neighbors.num_builds))
    for positions, forces, _ in runs[1:]:
        assert_array_equal(positions, runs[0][0])
        assert_array_equal(forces, runs[0][1])
    assert runs[0][2] == 61
    assert runs[0][2] > runs[1][2] > runs[2][2] >= 1


def test_structures_may_change_between_calls(
    calc: MDCGCalculator, original: torch.nn.Module
) -> None:
    reference = mace_calculator(original)
    swapped = liquid(6)
    swapped.numbers = swapped.numbers[::-1]
    for atoms in (liquid(6), swapped, liquid(9), Atoms("H"), liquid(3), small_box(), liquid(6)):
        assert_allclose(calc.get_forces(atoms), reference.get_forces(atoms), atol=1e-10)
    assert calc.get_forces(Atoms()).shape == (0, 3)


def test_no_atoms(calc: MDCGCalculator) -> None:
    atoms = Atoms(cell=[5, 5, 5], pbc=True)
    atoms.calc = calc
    assert atoms.get_potential_energy() == 0.0
    assert atoms.get_forces().shape == (0, 3)
    assert atoms.get_potential_energies().shape == (0,)
    assert_array_equal(atoms.get_stress(), np.zeros(6))


# ---- ASE's ways ----


def test_trajectory_keeps_results(calc: MDCGCalculator, tmp_path: Path) -> None:
    """As ase.test.calculator.test_traj does."""
    atoms = small_box()
    atoms.calc = calc
    energy = atoms.get_potential_energy()
    assert not calc.calculation_required(atoms, ["energy"])
    forces = atoms.get_forces()
    assert not calc.calculation_required(atoms, ["energy", "forces"])
    assert calc.calculation_required(atoms, ["stress"])
    for name in ("water.traj", "water.json", "water.extxyz"):
        ase.io.write(tmp_path / name, atoms)
        again = ase.io.read(tmp_path / name)
        assert again.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        assert_allclose(again.get_forces(), forces, atol=1e-7)


def test_direct_calls(calc: MDCGCalculator) -> None:
    """As ase.test.calculator.test_lj does."""
    atoms = small_box()
    calc.calculate(atoms, system_changes=["positions"])
    assert set(calc.results) == {"energy", "free_energy", "energies"}
    energy = calc.results["energy"]
    calc.calculate(atoms, ["forces"], [])
    assert calc.results["energy"] == pytest.approx(energy, rel=1e-14)
    assert "forces" in calc.results
    calc.calculate(atoms, ["energy"], all_changes)
    assert "forces" not in calc.results
    calc.calculate(properties=["stress"], system_changes=[])
    assert calc.results["stress"].shape == (6,)
    forces = calc.get_forces()
    forces[:] = 0.0
    assert np.abs(calc.get_forces()).max() > 0.0, "results are copied out"


def test_copies(calc: MDCGCalculator) -> None:
    atoms = small_box()
    forces = calc.get_forces(atoms)
    for other in (copy.deepcopy(calc), pickle.loads(pickle.dumps(calc))):
        assert other.is_patched
        assert_array_equal(other.get_forces(atoms), forces)
        atoms.rattle(0.01)
        assert not np.array_equal(other.get_forces(atoms), forces)
        atoms.positions = small_box().positions


def test_describes_itself(calc: MDCGCalculator, patched_file: Path) -> None:
    assert calc.todict() == {
        "model": str(patched_file),
        "device": "cpu",
        "dtype": "float64",
        "head": "Default",
        "skin": 0.5,
    }
    assert calc.is_patched
    assert len(calc.patch_report.patched) == 6
    assert calc.species == ("H", "O")
    assert calc.device == torch.device("cpu")
    text = repr(calc)
    for part in ("patched", "ScaleShiftMACE", "H O", "Å", "float64", "cpu", str(patched_file)):
        assert part in text
    with pytest.raises(TypeError, match="cannot change skin after"):
        calc.set(skin=1.0)


# ---- models ----


def test_live_models_are_used_as_given(original: torch.nn.Module) -> None:
    model = copy.deepcopy(original)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calc = MDCGCalculator(model)
    assert calc.model is model
    assert not calc.is_patched
    assert "unpatched" in repr(calc)
    atoms = small_box()
    forces = calc.get_forces(atoms)
    patch_model(model)
    assert calc.is_patched
    assert_allclose(MDCGCalculator(model).get_forces(atoms), forces, atol=1e-12)
    unpatch_model(model)
    single = MDCGCalculator(model, dtype="float32")
    assert single.model is not model
    assert single.dtype == torch.float32
    assert next(model.parameters()).dtype == torch.float64
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_parameters_stay_trainable_after_a_failure(original: torch.nn.Module) -> None:
    model = copy.deepcopy(original)
    with torch.no_grad():
        model.products[1].linear.weight.fill_(float("nan"))
    with pytest.raises(CalculationFailed, match="not finite numbers for"):
        MDCGCalculator(model).get_forces(small_box())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_unpatched_files_are_patched_at_load(
    caplog: pytest.LogCaptureFixture, original: torch.nn.Module
) -> None:
    before = CHECKPOINT.read_bytes()
    with caplog.at_level("INFO", logger="mdcg"):
        calc = MDCGCalculator(CHECKPOINT)
    assert calc.is_patched
    assert "patched it after loading" in caplog.text
    assert CHECKPOINT.read_bytes() == before
    atoms = small_box()
    assert_allclose(calc.get_forces(atoms), MDCGCalculator(original).get_forces(atoms), atol=1e-12)


def test_nothing_global_is_touched(patched_file: Path) -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_default_dtype(),
            torch.get_num_threads(),
            torch.random.get_rng_state().tolist(),
            str(np.random.get_state()),  # noqa: NPY002
            dict(os.environ),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        )

    before = state()
    for dtype in ("float32", "float64"):
        calc = MDCGCalculator(patched_file, dtype=dtype)
        calc.get_stress(small_box())
    with pytest.raises(InputError):
        calc.get_forces(bulk("Cu"))
    assert state() == before
