"""MDCGCalculator: model variants, heads, precision, and what it refuses."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.calculator import (
    CalculatorSetupError,
    InputError,
    PropertyNotImplementedError,
)
from ase.calculators.fd import FiniteDifferenceCalculator
from numpy.testing import assert_allclose

from mdcg import CheckpointError, DeviceError, MDCGCalculator, patch_model
from mdcg.patch import load_model, set_model_record

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
CHECKPOINT = DATA / "water.model"


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """MACE builds models in torch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def random_model(kind: str = "ScaleShiftMACE", **options: object) -> torch.nn.Module:
    """Return a small MACE model with random weights, for H, O and Cu."""
    load_model(CHECKPOINT)  # imports mace without the side effects of its import
    import mace.modules as mace_modules
    from e3nn import o3

    heads = options.get("heads", ["Default"])
    block = mace_modules.interaction_classes["RealAgnosticResidualInteractionBlock"]
    energies = np.linspace(-3.0, -1.0, 3 * len(heads)).reshape(len(heads), 3)
    settings: dict[str, object] = {
        "r_max": 4.0,
        "num_bessel": 5,
        "num_polynomial_cutoff": 5,
        "max_ell": 3,
        "interaction_cls": block,
        "interaction_cls_first": block,
        "num_interactions": 2,
        "num_elements": 3,
        "hidden_irreps": o3.Irreps("4x0e+4x1o"),
        "MLP_irreps": o3.Irreps("4x0e"),
        "atomic_energies": energies,
        "avg_num_neighbors": 3.0,
        "atomic_numbers": [1, 8, 29],
        "correlation": 2,
        "gate": torch.nn.functional.silu,
        "radial_MLP": [8],
    }
    if kind == "ScaleShiftMACE":
        scales = [1.0 + index for index in range(len(heads))]
        settings.update(
            atomic_inter_scale=scales if len(heads) > 1 else 1.3,
            atomic_inter_shift=[0.1] * len(heads) if len(heads) > 1 else 0.1,
        )
    settings.update(options)
    with float64(), torch.random.fork_rng():
        torch.manual_seed(4)
        return getattr(mace_modules, kind)(**settings)


def clusters() -> list[Atoms]:
    copper = bulk("Cu", cubic=True)
    copper.rattle(0.1, seed=1)
    water = molecule("H2O")
    water.rattle(0.1, seed=2)
    return [copper, water]


# ---- model variants ----


VARIANTS = {
    "ScaleShiftMACE": {},
    "MACE": {"kind": "MACE"},
    "ZBL": {"pair_repulsion": True},
    "Agnesi": {"distance_transform": "Agnesi"},
    "no cutoff on radial functions": {"apply_cutoff": False},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_patched_equals_unpatched(name: str) -> None:
    model = random_model(**VARIANTS[name])
    plain = MDCGCalculator(copy.deepcopy(model))
    patch_model(model)
    patched = MDCGCalculator(model)
    assert patched.is_patched
    assert not plain.is_patched
    for atoms in clusters():
        assert_allclose(patched.get_forces(atoms), plain.get_forces(atoms), atol=1e-10)
        for calc in (patched, plain):
            energies = calc.get_potential_energies(atoms)
            assert energies.sum() == pytest.approx(calc.get_potential_energy(atoms), rel=1e-12)
        if atoms.pbc.all():
            assert_allclose(patched.get_stress(atoms), plain.get_stress(atoms), atol=1e-10)
            atoms.calc = FiniteDifferenceCalculator(patched, eps_disp=3e-5, eps_strain=1e-5)
            assert_allclose(atoms.get_forces(), plain.get_forces(atoms), atol=1e-5)
            assert_allclose(atoms.get_stress(), plain.get_stress(atoms), atol=1e-6)


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
    """mace makes masks of heads in torch's default."""
    model = random_model(heads=["pbe", "r2scan"]).float()
    patch_model(model)
    water = clusters()[1]
    want = MDCGCalculator(model, head="pbe").get_forces(water)
    with float64():
        assert_allclose(MDCGCalculator(model, head="pbe").get_forces(water), want, atol=1e-6)
        assert torch.get_default_dtype() == torch.float64


def test_modes_of_torch() -> None:
    """What is kept from a call in one of them serves the next one in none."""
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
    with pytest.raises(InputError, match=r"total_charge is \[1, 2\], expected 1 number\(s\) for"):
        atoms.get_potential_energy()


def test_energy_that_is_no_sum_over_atoms() -> None:
    """A readout of the embedding adds to the total, and MACE gives it to no atom."""
    spec = {"type": "categorical", "per": "graph", "num_classes": 7, "emb_dim": 4, "offset": 3}
    specs = {"total_charge": spec}
    model = random_model(embedding_specs=specs, use_embedding_readout=True)
    atoms = clusters()[1]
    atoms.calc = MDCGCalculator(model)
    forces, energy = atoms.get_forces(), atoms.get_potential_energy()
    atoms.calc = FiniteDifferenceCalculator(MDCGCalculator(model), eps_disp=1e-4, eps_strain=None)
    assert np.isfinite(energy)
    with pytest.raises(PropertyNotImplementedError, match="no sum over atoms"):
        MDCGCalculator(model).get_potential_energies(atoms)
    assert forces.shape == (3, 3)


def test_float32_energies_keep_their_digits() -> None:
    """In float32 a sum with large energies of isolated atoms would lose what MD needs."""
    model = random_model(atomic_energies=np.array([[-2000.0, -2040.0, -45000.0]]))
    atoms = bulk("Cu", cubic=True) * (2, 2, 1)
    atoms.rattle(0.05, seed=3)
    exact = MDCGCalculator(model).get_potential_energy(atoms)
    single = MDCGCalculator(model, dtype="float32")
    assert abs(single.get_potential_energy(atoms) - exact) < 1e-4
    assert single.get_potential_energies(atoms).sum() == single.get_potential_energy(atoms)


# ---- refusals ----


def test_unknown_species() -> None:
    calc = MDCGCalculator(CHECKPOINT)
    with pytest.raises(InputError, match=r"does not know C, Cl; it was trained for H, O"):
        calc.get_forces(molecule("CH3Cl"))
    with pytest.raises(InputError, match="does not know X;"):
        calc.get_potential_energy(Atoms("XO", [[0, 0, 0], [1, 0, 0]]))
    atoms = Atoms("O")
    atoms.numbers[:] = 500
    with pytest.raises(InputError, match="does not know Z=500"):
        calc.get_potential_energy(atoms)
    assert np.isfinite(calc.get_potential_energy(molecule("H2O")))


def test_unusable_positions() -> None:
    calc = MDCGCalculator(CHECKPOINT)
    atoms = molecule("H2O")
    atoms.calc = calc
    wanted = atoms.get_forces()
    good = atoms.positions.copy()
    atoms.positions[1, 2] = np.nan
    with pytest.raises(InputError, match="atom 1 at"):
        atoms.get_forces()
    atoms.positions[:] = good
    atoms.positions[2] = atoms.positions[0]
    with pytest.raises(InputError, match="atoms 0 and 2 are at the same position"):
        atoms.get_forces()
    atoms.positions[:] = good
    assert_allclose(atoms.get_forces(), wanted, atol=1e-12)
    assert issubclass(InputError, CalculatorSetupError)


@pytest.mark.parametrize("pbc", [(0, 0, 0), (1, 1, 0), (0, 1, 1)], ids=str)
def test_stress_needs_a_cell(pbc: tuple[int, ...]) -> None:
    atoms = molecule("H2O", cell=[9.0, 9.0, 9.0], pbc=pbc)
    atoms.calc = MDCGCalculator(CHECKPOINT)
    with pytest.raises(PropertyNotImplementedError, match="periodic along three directions"):
        atoms.get_stress()
    assert atoms.get_forces().shape == (3, 3)
    atoms.pbc = True
    assert atoms.get_stress().shape == (6,)


@pytest.mark.parametrize("name", ["dipole", "stresses", "magmoms"])
def test_other_properties(name: str) -> None:
    calc = MDCGCalculator(CHECKPOINT)
    with pytest.raises(PropertyNotImplementedError, match=name):
        calc.get_property(name, molecule("H2O"))
    with pytest.raises(PropertyNotImplementedError, match=name):
        calc.calculate(molecule("H2O"), [name])


def test_nothing_to_calculate() -> None:
    with pytest.raises(ValueError, match="no atoms"):
        MDCGCalculator(CHECKPOINT).calculate()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"device": "cuda:97"}, DeviceError, "'?cuda:97'? was requested, but .* use device='cpu'"),
        ({"device": "tpu"}, ValueError, "device is 'tpu', expected 'cpu', 'cuda' or None"),
        ({"device": "meta"}, ValueError, "expected 'cpu', 'cuda' or None"),
        ({"dtype": "float16"}, ValueError, "dtype is 'float16', expected 'float32'"),
        ({"dtype": torch.int64}, ValueError, "expected 'float32', 'float64'"),
        ({"skin": -0.1}, ValueError, "skin is -0.1, expected a length"),
        ({"skin": np.nan}, ValueError, "skin is nan"),
        ({"head": "pbe"}, ValueError, "Default"),
    ],
)
def test_bad_options(options: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        MDCGCalculator(CHECKPOINT, **options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch finds a CUDA device")
def test_no_cuda_here() -> None:
    with pytest.raises(DeviceError, match="device cuda was requested, but"):
        MDCGCalculator(CHECKPOINT, device="cuda")


def test_bad_models(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nothing\.model"):
        MDCGCalculator(tmp_path / "nothing.model")
    (tmp_path / "text.model").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match=r"text\.model"):
        MDCGCalculator(tmp_path / "text.model")
    with pytest.raises(ValueError, match=r"has the member .*expected paths of packages"):
        MDCGCalculator([CHECKPOINT, CHECKPOINT])
    with pytest.raises(TypeError, match="expected a MACE or NequIP model"):
        MDCGCalculator(torch.nn.Linear(2, 2))
    scripted = torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(TypeError, match="TorchScript"):
        MDCGCalculator(scripted)


def test_models_without_energy() -> None:
    dipoles = random_model()
    del dipoles.atomic_energies_fn
    with pytest.raises(ValueError, match="computes no energy"):
        MDCGCalculator(dipoles)
