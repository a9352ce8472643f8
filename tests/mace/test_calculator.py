"""MDCGCalculator with MACE models, besides tests/calculators: values of MACE's own, copies."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import threading
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import (
    CalculationFailed,
)
from numpy.testing import assert_allclose

from mdcg import MDCGCalculator, patch_model, unpatch_model
from mdcg.calculators.torch_models import one_at_a_time
from mdcg.errors import CheckpointError
from mdcg.patch import load_model
from mdcg.patch._frameworks import default_dtype

from ..calculators import kinds
from ..engine.copies import check_copies, round_trip

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


SYSTEMS = {"water": liquid, "small box": small_box, **kinds.SYSTEMS}


# ---- values ----


@pytest.mark.parametrize("name", SYSTEMS)
def test_equals_mace_calculator(name: str, calc: MDCGCalculator, original: torch.nn.Module) -> None:
    atoms, wanted = SYSTEMS[name](), SYSTEMS[name]()
    atoms.calc, wanted.calc = calc, mace_calculator(original)
    with default_dtype(torch.float64):  # MACE multiplies nuclear charges in torch's default type
        wanted.get_potential_energy()
    for key in ("energy", "forces", "energies", *(["stress"] if atoms.pbc.all() else [])):
        found = atoms.calc.get_property(key, atoms)
        assert_allclose(found, wanted.calc.results[key], atol=1e-10, rtol=0, err_msg=key)


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


# ---- only requested properties are computed ----


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
    model = Counting(copy.deepcopy(original))
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


# ---- copies, pickles and other uses in ASE ----


def test_copies(tmp_path: Path, patched_file: Path, original: torch.nn.Module) -> None:
    path = Path(shutil.copy(patched_file, tmp_path))
    calc = MDCGCalculator(path, skin=0.3)
    check_copies(MDCGCalculator(copy.deepcopy(original), dtype="float32"), small_box())
    other = load_model(path)
    next(other.parameters()).data.mul_(1.1)
    torch.save(other, path)
    for way in (copy.deepcopy, round_trip):
        with pytest.raises(CheckpointError, match=r"has changed since .* make a new one"):
            way(calc)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"w.*\.model"):
        copy.deepcopy(calc)
    with torch.no_grad():  # the model differs from its file now, so copies contain the model itself
        calc.model.products[1].linear.weight.mul_(1.5)
    calc.reset()
    check_copies(calc, small_box())


def test_copies_of_changed_models(patched_file: Path) -> None:
    """Copies of a calculator keep changes that were made to its model after loading."""
    with torch.inference_mode():
        calc = MDCGCalculator(patched_file)
        check_copies(calc, small_box())
    calc = MDCGCalculator(patched_file)
    before = calc.get_potential_energy(small_box())
    for parameter in calc.model.parameters():
        parameter.data.mul_(1.1)
    check_copies(calc, small_box())
    assert abs(copy.deepcopy(calc).get_potential_energy(small_box()) - before) > 1e-3
    unpatch_model(calc.model)
    assert not copy.deepcopy(calc).is_patched


def test_threads_and_forks(patched_file: Path) -> None:
    """Threads of one default type run at once, and a child forked meanwhile can take the lock."""
    inside, both = threading.Barrier(2, timeout=60), []

    def hold() -> None:
        with default_dtype(torch.float64), one_at_a_time(torch.nn.Module()):
            both.append(inside.wait())
            inside.wait()

    helper = threading.Thread(target=hold)
    helper.start()
    with default_dtype(torch.float64):
        inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with default_dtype(torch.float64), one_at_a_time(torch.nn.Module()):
            os._exit(0 if torch.get_default_dtype() == torch.float64 else 1)
    inside.wait()
    helper.join()
    assert os.waitpid(child, 0)[1] == 0
    assert torch.get_default_dtype() == torch.float32
    assert both


# ---- models ----


def test_live_models_are_patched_in_place(original: torch.nn.Module) -> None:
    model = copy.deepcopy(original)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calc = MDCGCalculator(model)
    assert calc.model is model
    assert calc.is_patched
    atoms = small_box()
    forces = calc.get_forces(atoms)
    unpatch_model(model)
    assert not calc.is_patched
    assert "unpatched" in repr(calc)
    calc.reset()
    assert_allclose(calc.get_forces(atoms), forces, atol=1e-12)
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
    assert len(calc.patch_report.patched) == 6
    assert (calc.parameters["model"], calc.parameters["head"]) == (str(CHECKPOINT), "Default")
    for part in ("patched", "ScaleShiftMACE", str(CHECKPOINT)):
        assert part in repr(calc)
    assert "patched it after loading" in caplog.text
    assert CHECKPOINT.read_bytes() == before
    atoms = small_box()
    assert_allclose(calc.get_forces(atoms), mace_calculator(original).get_forces(atoms), atol=1e-12)
