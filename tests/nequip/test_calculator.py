"""MDCGCalculator on NequIP models and files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.build
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import InputError, PropertyNotImplementedError

from mdcg import MDCGCalculator, UnsupportedProblemError
from mdcg.patch import load_model, patch_model
from mdcg.patch.nequip_files import nequip_state

from ..engine.copies import check_copies


def structures() -> dict[str, Atoms]:
    rng = np.random.default_rng(4)
    box = Atoms("O4H8C2", cell=[6.0, 6.5, 7.0], pbc=True)
    box.set_cell(box.cell.array + rng.uniform(-0.8, 0.8, (3, 3)))
    grid = np.stack(np.meshgrid(range(2), range(2), range(4)), axis=-1).reshape(-1, 3)[:14]
    box.positions = grid * [3.0, 3.1, 1.7] + rng.uniform(-0.3, 0.3, (14, 3)) - [9.0, 0.0, 0.0]
    slab = box.copy()
    slab.pbc = (True, True, False)
    tiny = Atoms("OH", positions=[[0, 0, 0], [0, 0.2, 1]], cell=[2.5, 2.6, 2.7], pbc=True)
    return {
        "triclinic": box,
        "slab": slab,
        "tiny cell": tiny,
        "molecule": ase.build.molecule("CH3CH2OH"),
        "atom": Atoms("C"),
        "far apart": Atoms("OH", positions=[[0, 0, 0], [0, 0, 9]]),
    }


def reference(model: torch.nn.Module, atoms: Atoms) -> dict[str, Any]:
    """Evaluate with NequIP's own calculator."""
    with nequip_state():
        from nequip.integrations.ase import NequIPCalculator
        from nequip.integrations.utils import basic_transforms

        metadata: Any = model.metadata
        names = metadata["type_names"].split()
        atoms = atoms.copy()
        atoms.calc = NequIPCalculator(
            model,
            "cpu",
            transforms=basic_transforms(
                metadata, float(metadata["r_max"]), names, {name: name for name in names}
            ),
        )
        atoms.get_potential_energy()
        return dict(atoms.calc.results)


@pytest.mark.parametrize("name", ["parity", "per type", "pair potential"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_as_nequip_calculator(
    name: str, dtype: torch.dtype, build: Callable[..., torch.nn.Module]
) -> None:
    model = build(name, dtype)
    wanted = {label: reference(model, atoms) for label, atoms in structures().items()}
    patch_model(model)
    calculator = MDCGCalculator(model)
    limit = 1e-10 if dtype == torch.float64 else 1e-4
    for label, atoms in structures().items():
        want = wanted[label]
        atoms.calc = calculator
        size = 1.0 + float(np.abs(want["forces"]).max())
        assert atoms.get_potential_energy() == pytest.approx(want["energy"], abs=limit * size)
        assert atoms.get_forces() == pytest.approx(want["forces"], abs=limit * size), label
        assert atoms.get_potential_energies() == pytest.approx(want["energies"], abs=limit * size)
        assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()
        if atoms.pbc.any():
            assert atoms.get_stress() == pytest.approx(want["stress"], abs=limit * size)
        else:
            with pytest.raises(PropertyNotImplementedError, match="three independent vectors"):
                atoms.get_stress()
    assert torch.get_default_dtype() == torch.float32


def test_energy_alone_costs_no_backward(
    build: Callable[..., torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build("parity")
    atoms = structures()["triclinic"]
    atoms.calc = MDCGCalculator(model)
    want = atoms.get_potential_energies()
    atoms.calc = MDCGCalculator(model)
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", None)
        assert atoms.get_potential_energy() == pytest.approx(want.sum(), abs=1e-10)
    assert np.isfinite(atoms.get_forces()).all()


def test_species_types(build: Callable[..., torch.nn.Module]) -> None:
    plain = build("parity")
    named = build(
        "parity",
        type_names=["hydrogen", "carbon", "oxygen"],
        per_type_energy_shifts={"hydrogen": 0.5, "carbon": -1.5, "oxygen": 2.0},
    )
    with pytest.raises(ValueError, match="hydrogen, carbon, oxygen are not chemical symbols: pass"):
        MDCGCalculator(named)
    names = {"H": "hydrogen", "D": "hydrogen"}
    with pytest.raises(ValueError, match="'D', which is not a chemical symbol"):
        MDCGCalculator(named, species_types=names)
    with pytest.raises(ValueError, match="maps O to 'oxide', expected one of the model's types"):
        MDCGCalculator(named, species_types={"O": "oxide"})
    mapping = {"H": "hydrogen", "C": "carbon", "O": "oxygen", "S": "oxygen"}
    atoms = structures()["triclinic"]
    atoms.calc = MDCGCalculator(plain)
    want = atoms.get_forces()
    atoms.symbols[atoms.symbols == "O"] = "S"
    atoms.calc = MDCGCalculator(named, species_types=mapping)
    assert atoms.get_forces() == pytest.approx(want, abs=1e-12)
    assert atoms.calc.species == ("H", "C", "O", "S")


def test_wrong_arguments(build: Callable[..., torch.nn.Module], data_dir: Path) -> None:
    model = build("parity")
    with pytest.raises(ValueError, match=r"built in torch\.float64 .* is fixed: leave out dtype"):
        MDCGCalculator(model, dtype="float32")
    with pytest.raises(ValueError, match="is fixed"):
        MDCGCalculator(data_dir / "nequip_alloy.ckpt", dtype="float64")
    assert MDCGCalculator(model, dtype="float64").model is model
    with pytest.raises(ValueError, match="NequIP models have no heads"):
        MDCGCalculator(model, head="pbe")
    with pytest.raises(ValueError, match="computes no forces"):
        MDCGCalculator(build("parity", do_derivatives=False))
    atoms = Atoms("Xe")
    atoms.calc = MDCGCalculator(model)
    with pytest.raises(InputError, match="does not know Xe, only H, C, O"):
        atoms.get_potential_energy()


def test_edges_within_cutoffs_per_type_stay_the_same_tensors(
    build: Callable[..., torch.nn.Module],
) -> None:
    """Edges within cutoffs per type are new tensors only when the edges change."""
    atoms = Atoms("HOC", positions=[[0, 0, 0], [0, 0, 2.0], [0, 1.9, 0]])
    calculator = MDCGCalculator(build("per type"), skin=0.5)
    atoms.calc = calculator
    found = []
    # The carbon atom moves beyond the cutoff of C and O (2.5 Å), but stays within r_max.
    for step, height in enumerate((0.0, 0.01, 0.02, 1.0, 1.01)):
        atoms.positions[2, 1] = 1.2 + height
        atoms.positions[0, 0] = 0.01 * step
        forces = atoms.get_forces()
        found.append(calculator._backend._evaluators[0]._reversed[1])
        fresh = atoms.copy()
        fresh.calc = MDCGCalculator(build("per type"))
        assert forces == pytest.approx(fresh.get_forces(), abs=1e-12)
    assert found[0] is found[1] is found[2]
    assert found[3] is not found[2]
    assert found[3].shape != found[2].shape
    assert found[4] is found[3]


def test_threads_share_a_model(build: Callable[..., torch.nn.Module]) -> None:
    """Threads can share a model: one computes forces while another computes only an energy."""
    model = build("parity")
    atoms = structures()["triclinic"]
    atoms.calc = MDCGCalculator(model)
    want = atoms.get_forces()
    calculators = [MDCGCalculator(model), MDCGCalculator(model)]
    found: list[Any] = []

    def forces() -> None:
        second = atoms.copy()
        second.calc = calculators[1]
        found.append(second.get_forces())

    other = threading.Thread(target=forces)

    def start(*_: Any) -> None:
        handle.remove()
        other.start()
        other.join(0.5)  # it waits for this evaluation, so it cannot end here

    handle = model.register_forward_pre_hook(start)
    first = atoms.copy()
    first.calc = calculators[0]
    first.get_potential_energy()
    other.join(60)
    assert found[0] == pytest.approx(want, abs=1e-12)
    assert all(p.requires_grad for p in model.parameters())
    assert all(m.do_derivatives for m in model.modules() if hasattr(m, "do_derivatives"))


def test_copies(build: Callable[..., torch.nn.Module], package: Path) -> None:
    """Calculators of a NequIP package and of a model without a file can be copied."""
    for model in (package, build("parity")):
        calc = MDCGCalculator(model, skin=0.3)
        places = [[0.0, 0.0, 0.0], [0.0, 0.3, 1.9], [1.8, 0.0, 0.2]]
        check_copies(calc, Atoms(calc.species[:3], positions=places))


def of_the_library(model: torch.nn.Module, types: dict[str, str], **options: float) -> Any:
    with nequip_state():
        from nequip.integrations.ase import NequIPCalculator
        from nequip.integrations.utils import basic_transforms

        metadata: Any = model.metadata
        names = metadata["type_names"].split()
        transforms = basic_transforms(metadata, float(metadata["r_max"]), names, types)
        return NequIPCalculator(model, "cpu", transforms=transforms, **options)


def test_a_calculator_of_nequip(build: Callable[..., torch.nn.Module]) -> None:
    """Its model is patched in place, its types are taken, and committees of models are means."""
    models = [build("parity"), build("parity", seed=7)]
    types = {"O": "O", "H": "H", "N": "C"}
    atoms = structures()["triclinic"]
    atoms.symbols[12:] = "N"
    want = []
    for model in models:
        original = of_the_library(model, types)
        with nequip_state():
            original.calculate(atoms)
        want.append(dict(original.results))
    calc = MDCGCalculator(of_the_library(models[0], types))
    assert calc.is_patched
    assert calc.model is models[0]
    assert calc.species == ("H", "N", "O")
    both = MDCGCalculator([of_the_library(model, types) for model in models])
    for name in ("energy", "forces", "stress"):
        assert calc.get_property(name, atoms) == pytest.approx(want[0][name], abs=1e-10)
        mean = np.mean([each[name] for each in want], axis=0)
        assert both.get_property(name, atoms) == pytest.approx(mean, abs=1e-10)
    with pytest.raises(ValueError, match=r"energy_units_to_eV of the NequIPCalculator is 0\.5, ex"):
        MDCGCalculator(of_the_library(models[0], types, energy_units_to_eV=0.5))
    calculator = of_the_library(models[0], types)
    calculator.model = torch.nn.Identity()
    message = "has an Identity, which is compiled, .*: give the .ckpt or .nequip.zip that it was"
    with pytest.raises(UnsupportedProblemError, match=message):
        MDCGCalculator(calculator)


def test_types_in_a_mixed_committee(build: Callable[..., torch.nn.Module]) -> None:
    """The types of a NequIPCalculator are not asked of a model of another framework."""
    pytest.importorskip("mace", reason="one of the models is MACE's")
    data = Path(__file__).resolve().parents[2] / "examples" / "data"
    models = [load_model(data / f"water.{ending}") for ending in ("ckpt", "model")]
    singles = [MDCGCalculator(model) for model in models]
    atoms = ase.build.molecule("H2O")
    want = np.mean([calc.get_forces(atoms) for calc in singles], axis=0)
    given = of_the_library(models[0], {"H": "H", "O": "O"})
    assert MDCGCalculator([given, models[1]]).get_forces(atoms) == pytest.approx(want, abs=1e-12)
    with pytest.raises(
        ValueError, match="species_types is for NequIP models; a MACE model has che"
    ):
        MDCGCalculator(models[1], species_types={"H": "H", "O": "O"})


def test_stress_of_molecules_as_in_mace(build: Callable[..., torch.nn.Module]) -> None:
    """The volume is that of MACE's cell, for structures with and without open directions."""
    calc = MDCGCalculator(build("parity"), stress_volume="mace")
    molecule = structures()["molecule"]
    length = (np.abs(molecule.positions).max() + 1.0) * 5.0 * calc.r_max
    strained = []
    for strain in (-1e-5, 1e-5):
        other = molecule.copy()
        other.positions[:, 0] *= 1.0 + strain
        strained.append(calc.get_potential_energy(other))
    want = (strained[1] - strained[0]) / 2e-5 / length**3
    assert calc.get_property("stress", molecule)[0] == pytest.approx(want, rel=1e-5)
