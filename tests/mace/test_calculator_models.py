"""MDCGCalculator: model variants, heads, precision, and what it refuses."""

from __future__ import annotations

import copy
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import (
    InputError,
    PropertyNotImplementedError,
)
from ase.calculators.fd import calculate_numerical_forces
from numpy.testing import assert_allclose

from mdcg import CheckpointError, MDCGCalculator, patch_model
from mdcg.patch import set_model_record
from mdcg.patch._frameworks import default_dtype

from .conftest import build_model

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
CHECKPOINT = DATA / "water.model"
PACKAGE = Path(__file__).resolve().parents[1] / "data" / "mace_water_float64.mdcg"


def random_model(kind: str = "ScaleShiftMACE", **options: object) -> torch.nn.Module:
    """Return a small MACE model with random weights, for H, O and Cu."""
    heads = options.get("heads", ["Default"])
    settings: dict[str, object] = {
        "num_bessel": 5,
        "max_ell": 3,
        "num_elements": 3,
        "atomic_energies": np.linspace(-3.0, -1.0, 3 * len(heads)).reshape(len(heads), 3),
        "atomic_numbers": [1, 8, 29],
        "radial_MLP": [8],
    }
    if kind == "ScaleShiftMACE" and len(heads) > 1:
        settings["atomic_inter_scale"] = [1.0 + index for index in range(len(heads))]
        settings["atomic_inter_shift"] = [0.1] * len(heads)
    block = "RealAgnosticResidualInteractionBlock"
    return build_model(block, block, model_class=kind, seed=4, **(settings | options))


def clusters() -> list[Atoms]:
    copper = bulk("Cu", cubic=True)
    copper.rattle(0.1, seed=1)
    water = molecule("H2O")
    water.rattle(0.1, seed=2)
    return [copper, water]


# ---- model variants ----


def test_heads() -> None:
    model = random_model(heads=["pbe", "r2scan"])
    with pytest.raises(ValueError, match="pbe, r2scan"):
        MDCGCalculator(model)
    with pytest.raises(ValueError, match=r"'dft'.*pbe, r2scan"):
        MDCGCalculator(model, head="dft")
    patch_model(model)
    water = clusters()[1]
    energies = {}
    for head in ("pbe", "r2scan"):
        calc = MDCGCalculator(model, head=head)
        assert calc.heads == ("pbe", "r2scan")
        assert calc.parameters["head"] == head
        energies[head] = calc.get_potential_energy(water)
    assert abs(energies["pbe"] - energies["r2scan"]) > 0.1
    set_model_record(model, {"head": "r2scan"})
    assert MDCGCalculator(model).get_potential_energy(water) == energies["r2scan"]
    assert MDCGCalculator(model, head="pbe").get_potential_energy(water) == energies["pbe"]


def test_heads_under_another_default_type() -> None:
    """Forces of a head do not depend on torch's default type, in which mace makes head masks."""
    model = random_model(heads=["pbe", "r2scan"], max_ell=1).float()
    patch_model(model)
    water = clusters()[1]
    want = MDCGCalculator(model, head="pbe").get_forces(water)
    with default_dtype(torch.float64):
        assert_allclose(MDCGCalculator(model, head="pbe").get_forces(water), want, atol=1e-6)
        assert torch.get_default_dtype() == torch.float64


@pytest.mark.parametrize("pair_repulsion", [True, False])
def test_nuclear_charges_are_multiplied_in_the_type_of_the_model(pair_repulsion: bool) -> None:
    """Forces do not depend on torch's default type, in which mace multiplies nuclear charges."""
    model = random_model(pair_repulsion=pair_repulsion)
    patch_model(model)
    atoms = Atoms("OH2", [[0, 0, 0], [0.6, 0, 0], [0, 0.55, 0]])
    with default_dtype(torch.float64):
        want = MDCGCalculator(model).get_forces(atoms)
    found = MDCGCalculator(model).get_forces(atoms)
    assert_allclose(found, want, rtol=1e-12, atol=1e-12)
    assert torch.get_default_dtype() == torch.float32


def test_threads_with_models_of_two_types() -> None:
    """Models of two types give exact results in threads, which share torch's default type."""
    models = [random_model(pair_repulsion=True).to(t) for t in (torch.float32, torch.float64)]
    atoms = Atoms("OH2", [[0, 0, 0], [0.6, 0, 0], [0, 0.55, 0]])
    want = [MDCGCalculator(model).get_forces(atoms) for model in models]

    def run(number: int) -> list[np.ndarray]:
        calc, found = MDCGCalculator(models[number]), []
        for _ in range(20):
            calc.reset()
            found.append(calc.get_forces(atoms))
        return found

    with ThreadPoolExecutor(4) as pool:
        for number, found in zip((0, 1, 0, 1), pool.map(run, (0, 1, 0, 1)), strict=True):
            assert all(np.array_equal(forces, want[number]) for forces in found)
    assert torch.get_default_dtype() == torch.float32


def test_modes_of_torch() -> None:
    """Values cached under inference_mode or no_grad can be used by later calls outside of it."""
    model = random_model()
    patch_model(model)
    atoms = clusters()[1]
    want = MDCGCalculator(model).get_forces(atoms)
    for mode in (torch.inference_mode, torch.no_grad):
        calc = MDCGCalculator(model)
        with mode():
            calc.get_potential_energy(atoms)
        assert_allclose(calc.get_forces(atoms), want, atol=1e-12)
        with mode():
            assert_allclose(MDCGCalculator(model).get_forces(atoms), want, atol=1e-12)


def test_charge_and_spin_are_passed_on() -> None:
    spec = {"type": "categorical", "per": "graph", "num_classes": 7, "emb_dim": 4}
    specs = {
        "total_charge": {**spec, "offset": 3},
        "total_spin": {**spec, "offset": 0},
    }
    model = random_model(embedding_specs=specs)
    patch_model(model)
    calc = MDCGCalculator(model)
    atoms = clusters()[1]
    atoms.calc = calc
    neutral = atoms.get_potential_energy()
    atoms.info["charge"] = 0
    assert atoms.get_potential_energy() == neutral
    atoms.info["charge"] = 1
    charged = atoms.get_potential_energy()
    assert abs(charged - neutral) > 1e-6
    atoms.info["spin"] = 2
    assert abs(atoms.get_potential_energy() - charged) > 1e-6
    atoms.info["charge"] = [1, 2]
    for value, message in (
        ([1, 2], r"charge of the structure is \[1, 2\], expected a whole number from -3 to 3"),
        (0.5, "charge of the structure is 0.5, expected a whole number from -3 to 3"),
        (4, "charge of the structure is 4, expected a whole number from -3 to 3"),
        ("one", "charge of the structure is 'one', expected a whole number from -3 to 3"),
    ):
        atoms.info["charge"] = value
        with pytest.raises(InputError, match=message):
            atoms.get_potential_energy()
    atoms.info |= {"charge": 1, "total_charge": 2}
    with pytest.raises(InputError, match="charge of the structure is 1 and total_charge is 2, wh"):
        atoms.get_potential_energy()
    atoms.info["total_charge"] = 1.0
    assert abs(atoms.get_potential_energy() - neutral) > 1e-6


def test_an_input_that_mace_has_no_neutral_value_for() -> None:
    spec = {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 4}
    calc = MDCGCalculator(random_model(embedding_specs={"pressure": spec}))
    atoms = clusters()[1]
    message = r"has no pressure, which the model reads .*: set atoms.info\['pressure'\] to a finite"
    with pytest.raises(InputError, match=message):
        calc.get_potential_energy(atoms)
    energies = set()
    for value in (0.0, 1.5):
        atoms.info["pressure"] = value
        energies.add(calc.get_potential_energy(atoms))
    assert len(energies) == 2


def test_energy_that_is_no_sum_over_atoms() -> None:
    """If an embedding readout adds to the total energy only, energies of atoms are refused."""
    spec = {"type": "categorical", "per": "graph", "num_classes": 7, "emb_dim": 4, "offset": 3}
    specs = {"total_charge": spec}
    model = random_model(embedding_specs=specs, use_embedding_readout=True)
    atoms = clusters()[1]
    atoms.calc = MDCGCalculator(model)
    forces = atoms.get_forces()
    np.testing.assert_allclose(forces, calculate_numerical_forces(atoms, eps=1e-4), atol=1e-6)
    with pytest.raises(PropertyNotImplementedError, match="not a sum over atoms"):
        MDCGCalculator(model).get_potential_energies(atoms)


def test_float32_energies_keep_their_digits() -> None:
    """Energies of float32 models keep their digits beside large energies of isolated atoms."""
    model = random_model(atomic_energies=np.array([[-2000.0, -2040.0, -45000.0]]))
    atoms = bulk("Cu", cubic=True) * (2, 2, 1)
    atoms.rattle(0.05, seed=3)
    exact = MDCGCalculator(model).get_potential_energy(atoms)
    single = MDCGCalculator(model, dtype="float32")
    assert abs(single.get_potential_energy(atoms) - exact) < 1e-4
    assert single.get_potential_energies(atoms).sum() == single.get_potential_energy(atoms)


# ---- refusals ----


def test_bad_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.model"):
        MDCGCalculator(tmp_path / "nothing.model")
    (tmp_path / "text.model").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match=r"text\.model"):
        MDCGCalculator(tmp_path / "text.model")
    with pytest.raises(ValueError, match=r"has the member .*expected paths of packages"):
        MDCGCalculator([PACKAGE, CHECKPOINT])
    with pytest.raises(TypeError, match="expected a MACE, NequIP or SevenNet model"):
        MDCGCalculator(torch.nn.Linear(2, 2))
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(TypeError, match="TorchScript"):
        MDCGCalculator(scripted)


def test_a_loaded_model_is_patched_in_place(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is warned of, and what the caller does to the model later has its effect."""
    model, atoms = random_model(), clusters()[1]
    with caplog.at_level(logging.WARNING, logger="mdcg"):
        calc = MDCGCalculator(model)
        copy.deepcopy(calc).get_forces(atoms)
        assert calc.model is model
        assert calc.is_patched
        assert MDCGCalculator(CHECKPOINT).is_patched
    # one of the first pickle of a process is no warning of the model
    assert not [each for each in caplog.records if "is a pickle" not in each.getMessage()]
    before = calc.get_potential_energy(atoms)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)
    calc.reset()
    assert abs(calc.get_potential_energy(atoms) - before) > 1e-6


def test_models_without_energy() -> None:
    dipoles = random_model()
    del dipoles.atomic_energies_fn
    with pytest.raises(ValueError, match="computes no energy"):
        MDCGCalculator(dipoles)
