"""MDCGCalculator on SevenNet's own models, which torch runs."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.calculator import InputError, PropertyNotImplementedError
from numpy.testing import assert_allclose

from mdcg import MDCGCalculator, UnsupportedProblemError, patch_model
from mdcg.patch import is_patched

from ..calculators.kinds import SYSTEMS, with_cell
from .conftest import (
    MODAL_MODELS,
    MODALS,
    MODELS,
    build_model,
    config_of,
    modal_config,
    write_checkpoint,
)


def of_the_library(model: torch.nn.Module, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sevenn.calculator import SevenNetCalculator

        return SevenNetCalculator(model, file_type="model_instance", device="cpu", **options)


def systems() -> dict[str, Atoms]:
    found = {name: make() for name, make in SYSTEMS.items()}
    found["along y alone"] = with_cell(
        found["molecules"].copy(), [[0.0, 4.5, 0.0], [0, 0, 0], [0, 0, 0]], (True, False, False)
    )
    return found


@pytest.mark.parametrize("name", ["like the published", "parity"])
def test_as_the_calculator_of_the_library(name: str) -> None:
    """Values of the original, which has data in float32; its stress of slabs is another."""
    model = build_model(config_of(**MODELS[name]), torch.float32)
    original, given = of_the_library(copy.deepcopy(model)), of_the_library(model)
    calc = MDCGCalculator(given)
    assert calc.is_patched
    assert calc.model is given.model
    for label, make in SYSTEMS.items():
        atoms = make()
        original.calculate(atoms, ["energy"])
        names = ["energy", "energies", "forces", *(["stress"] if atoms.pbc.all() else [])]
        for key in names:
            found = calc.get_property(key, atoms)
            want = original.results[key]
            assert_allclose(found, want, rtol=1e-5, atol=1e-5, err_msg=f"{label} {key}")


def test_exact_beside_its_package(tmp_path: Path) -> None:
    """In float64 the torch model, its copy and its package agree, stress of slabs included."""
    from mdcg.package.convert import ConversionOptions, convert_model

    model = build_model(modal_config(**MODAL_MODELS["all"]))
    convert_model(model, ConversionOptions(head="low", radial="exact")).save(tmp_path / "low.mdcg")
    package = MDCGCalculator(tmp_path / "low.mdcg", stress_volume="mace")
    calc = MDCGCalculator(model, head="low", stress_volume="mace")
    for label, atoms in systems().items():
        for key in ("energy", "energies", "forces", "stress"):
            if (label, key) == ("along y alone", "stress"):
                continue  # MACE's cell has two vectors along y
            want = package.get_property(key, atoms)
            for each in (calc, copy.deepcopy(calc)):
                found = each.get_property(key, atoms)
                assert_allclose(found, want, rtol=1e-9, atol=1e-10, err_msg=f"{label} {key}")
    with pytest.raises(PropertyNotImplementedError, match="stress needs a cell"):
        MDCGCalculator(model, head="low").get_property("stress", SYSTEMS["molecules"]())


def test_a_checkpoint(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "m.pth", modal_config(**MODAL_MODELS["all"]))
    atoms = SYSTEMS["triclinic"]()
    with pytest.raises(ValueError, match=r"has 3 modals .*PBE, R2SCAN, low.*: name one"):
        MDCGCalculator(path)
    found = {}
    for modal in MODALS:
        calc = MDCGCalculator(path, head=modal)
        assert calc.is_patched
        assert calc.parameters["head"] == modal
        found[modal] = calc.get_potential_energy(atoms)
        again = pickle.loads(pickle.dumps(calc))
        assert again.get_potential_energy(atoms) == found[modal]
    assert len(set(found.values())) == 3
    atoms.info["head"] = "R2SCAN"
    assert calc.get_potential_energy(atoms) == found[modal], "the head of the calculator goes first"
    calc = MDCGCalculator(path, head=modal, info_keys={"head": "head"})
    assert calc.get_potential_energy(atoms) == found["R2SCAN"]
    atoms.info["head"] = "scan"
    with pytest.raises(InputError, match="is 'scan', expected one of the model's: PBE, R2SCAN, lo"):
        calc.get_potential_energy(atoms)
    double = MDCGCalculator(path, head="low", dtype="float64")
    assert double.get_potential_energy(SYSTEMS["triclinic"]()) == pytest.approx(found["low"], 1e-5)
    calculator = MDCGCalculator(
        of_the_library(build_model(modal_config(**MODAL_MODELS["all"])), modal="PBE")
    )
    assert calculator.parameters["head"] == "PBE"


def test_a_committee_and_what_it_lacks(tmp_path: Path) -> None:
    paths = [write_checkpoint(tmp_path / f"{n}.pth", config_of(), seed=n) for n in range(2)]
    atoms = SYSTEMS["triclinic"]()
    calc = MDCGCalculator(paths)
    found = calc.get_property("forces", atoms)
    single = [MDCGCalculator(path).get_property("forces", atoms) for path in paths]
    assert_allclose(found, np.mean(single, axis=0), atol=1e-7)
    message = (
        "is for packages and for MACE models of energies alone, and this is AtomGraphSequential"
    )
    with pytest.raises(UnsupportedProblemError, match=message):
        calc.get_descriptors(atoms)
    with pytest.raises(ValueError, match="species_types is for NequIP models; a SevenNet model h"):
        MDCGCalculator(paths, species_types={"O": "O"})


def test_a_patched_model_is_taken_as_it_is() -> None:
    model = build_model(config_of())
    patch_model(model)
    assert MDCGCalculator(model).model is model
    assert is_patched(MDCGCalculator(model, dtype="float32").model)
