"""Heads that structures state, and keys of inputs, in MDCGCalculator as in MACE's calculator."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.calculators.calculator import InputError

from mdcg import MDCGCalculator
from mdcg.package import ConversionOptions, convert_model
from mdcg.patch._frameworks import default_dtype

from .test_drop_in import HEADS, compare, mace_calculator, many_heads, random_model, slab

# ---- heads ----


def test_the_head_that_a_structure_states(tmp_path: Path) -> None:
    model, atoms = many_heads(), slab()
    wanted = {}
    for head in HEADS:
        calculator = mace_calculator(model, head=head)
        with default_dtype(torch.float64):
            wanted[head] = calculator.get_potential_energy(atoms)
    calc = MDCGCalculator(copy.deepcopy(model))
    atoms.calc = calc
    for head in (None, "r2scan", "Default", "pbe"):
        if head is not None:
            atoms.info["head"] = np.str_(head)
        assert atoms.get_potential_energy() == pytest.approx(wanted[head or "Default"], abs=1e-10)
    atoms.info["head"] = "scan"
    assert calc.check_state(atoms) == ["info"]
    atoms.write(tmp_path / "x.traj")
    message = "head of the structure is 'scan', expected one of the model's: pbe, Default, r2scan"
    with pytest.raises(InputError, match=message):
        atoms.get_potential_energy()
    atoms.info = {"level": "r2scan", "head": "scan"}
    calc = MDCGCalculator(copy.deepcopy(model), info_keys={"head": "level"})
    assert calc.parameters["head"] == "Default", "the head that MACE's calculator takes"
    assert calc.get_potential_energy(atoms) == pytest.approx(wanted["r2scan"], abs=1e-10)


def test_the_head_of_the_calculator_comes_first(tmp_path: Path) -> None:
    """Frames of training data state heads, which MACE's calculator does not read."""
    model, atoms, path = many_heads(), slab(), tmp_path / "pbe.mdcg"
    convert_model(model, ConversionOptions(head="pbe")).save(path)
    atoms.info["head"] = "r2scan"
    original = mace_calculator(model, head="pbe")
    compare(MDCGCalculator(mace_calculator(model, head="pbe")), original, atoms)
    compare(MDCGCalculator(copy.deepcopy(model), head="pbe"), original, atoms)
    compare(MDCGCalculator(path, head="pbe"), original, atoms)
    calc = MDCGCalculator(mace_calculator(model, head="pbe"), info_keys={"head": "head"})
    compare(calc, mace_calculator(model, head="r2scan"), atoms)
    with pytest.raises(
        InputError, match=r"head of the structure is 'r2scan', and .*with head 'pbe'"
    ):
        MDCGCalculator(path, head="pbe", info_keys={"head": "head"}).get_forces(atoms)


def test_a_package_has_one_head(tmp_path: Path) -> None:
    path = tmp_path / "pbe.mdcg"
    convert_model(many_heads(), ConversionOptions(head="pbe")).save(path)
    atoms = slab()
    calc = MDCGCalculator(path)
    want = calc.get_potential_energy(atoms)
    atoms.info["head"] = "pbe"
    assert calc.get_potential_energy(atoms) == want
    atoms.info["head"] = "r2scan"
    message = (
        r"head of the structure is 'r2scan', and .*pbe\.mdcg was converted with head 'pbe': "
        r"convert the checkpoint again with mdcg-patch --head r2scan, or remove 'head' from atoms"
    )
    for evaluate in (calc.get_potential_energy, calc.get_descriptors, lambda a: calc.batch([a])):
        with pytest.raises(InputError, match=message):
            evaluate(atoms)


@pytest.mark.parametrize(
    ("heads", "listed", "refused"),
    [
        (["Default"], None, False),
        (["pbe"], ["pbe"], False),
        (["Default", "r2scan"], ["Default", "r2scan"], True),
    ],
)
def test_heads_of_the_checkpoint(
    heads: list[str], listed: list[str] | None, refused: bool, tmp_path: Path
) -> None:
    """A package of one of several heads refuses structures of another, and no other package."""
    scale = {"atomic_inter_scale": [1.0] * len(heads), "atomic_inter_shift": [0.0] * len(heads)}
    energies = np.linspace(-3.0, -1.0, 2 * len(heads)).reshape(-1, 2)
    model, path = random_model(heads=heads, atomic_energies=energies, **scale), tmp_path / "h.mdcg"
    package = convert_model(model, ConversionOptions(head=heads[0]))
    assert package.manifest.get("heads") == listed
    package.save(path)
    atoms = slab()
    atoms.info["head"] = "r2scan"
    if refused:
        with pytest.raises(InputError, match=r"'r2scan', and .* was converted with head 'Default'"):
            MDCGCalculator(path).get_potential_energy(atoms)
    else:
        compare(MDCGCalculator(path), mace_calculator(model), atoms)
        compare(MDCGCalculator(model), mace_calculator(model), atoms)


# ---- keys of inputs ----


def test_keys_of_inputs(tmp_path: Path) -> None:
    """Charge and spin are read under the keys that MACE's calculator was told."""
    spec = {"type": "categorical", "per": "graph", "num_classes": 7, "emb_dim": 4, "offset": 3}
    level = {"type": "continuous", "per": "atom", "in_dim": 1, "emb_dim": 4}
    model = random_model(embedding_specs={"total_charge": spec, "level": level})
    keys = {
        "info_keys": {"total_charge": "q", "total_spin": "s"},
        "arrays_keys": {"level": "kind"},
    }
    atoms = slab()
    atoms.info |= {"q": 2, "charge": 1}
    atoms.arrays["kind"] = np.linspace(0.0, 1.0, 6)
    original = mace_calculator(model, **keys)
    for calc in (
        MDCGCalculator(mace_calculator(model, **keys)),
        MDCGCalculator(copy.deepcopy(model), **keys),
    ):
        compare(calc, original, atoms)
        before = calc.get_potential_energy(atoms)
        other = atoms.copy()
        other.info["q"] = -1
        assert abs(calc.get_potential_energy(other) - before) > 1e-6
        other.info["q"] = 9
        with pytest.raises(InputError, match="q of the structure is 9, expected a whole number f"):
            calc.get_potential_energy(other)

    model = random_model(embedding_specs={"total_charge": spec})
    convert_model(model, ConversionOptions(graph_fields=(("total_charge", 0),))).save(
        tmp_path / "q.mdcg"
    )
    calc = MDCGCalculator(tmp_path / "q.mdcg", info_keys=keys["info_keys"])
    compare(calc, mace_calculator(model, **keys), atoms)
    plain = MDCGCalculator(tmp_path / "q.mdcg")
    atoms.info = {"charge": 2}
    energy = plain.get_potential_energy(atoms)
    assert energy != calc.get_potential_energy(atoms), "the usual key is not read any more"
    atoms.info = {"q": 2}
    assert calc.get_potential_energy(atoms) == energy
