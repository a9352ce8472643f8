"""Packages of PolarMACE: charges and dipoles in each other's fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import molecule
from ase.calculators.calculator import InputError, PropertyNotImplementedError

from mdcg import MDCGCalculator
from mdcg.errors import UnsupportedProblemError
from mdcg.package import convert_model
from mdcg.package.convert import ConversionOptions
from mdcg.package.verification import verify_package
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.systems import Structure, verification_systems

from ..covering import covering
from ..lammps.lmp import water
from ..lammps.make_packages import strengthen

ION = (("total_charge", -1), ("total_spin", 2))
NO_DEFAULTS = ()
WIDTHS = {"one": [1.2], "two": [1.0, 1.5]}


def model_of(build: Any, **changes: Any) -> Any:
    pytest.importorskip("graph_longrange", reason="pip install graph-longrange==0.4.0")
    settings = {
        "atomic_multipoles_max_l": 1,
        "field_feature_max_l": 1,
        "field_feature_widths": WIDTHS["two"],
        "num_recursion_steps": 2,
        "add_local_electron_energy": True,
        "atomic_inter_scale": 1.3,
        "atomic_inter_shift": 0.2,
    }
    model = build(model_class="PolarMACE", **{**settings, **changes})
    strengthen(model)
    return model


def converted(model: Any, path: Path, fields: Any = ION, **options: Any) -> Any:
    package = convert_model(model, ConversionOptions(graph_fields=fields, **options))
    package.save(path)
    return package


def some(names: tuple[str, ...]) -> list[Structure]:
    known = verification_systems([1, 8], 4.0, symbols=("H", "O"))
    return [each for each in known if each.name in names]


@covering(
    max_l=[0, 1],
    field_max_l=[0, 1],
    widths=list(WIDTHS),
    steps=[0, 1, 2],
    energy=[False, True],
    own=[False, True],
    fields=[ION, NO_DEFAULTS],
    norms=[False, True],
)
def test_results_are_those_of_the_model(
    build: Any,
    tmp_path: Path,
    max_l: int,
    field_max_l: int,
    widths: str,
    steps: int,
    energy: bool,
    own: bool,
    fields: Any,
    norms: bool,
) -> None:
    count = len(WIDTHS[widths]) * (1 + field_max_l)
    model = model_of(
        build,
        atomic_multipoles_max_l=max_l,
        field_feature_max_l=field_max_l,
        field_feature_widths=WIDTHS[widths],
        num_recursion_steps=steps,
        add_local_electron_energy=energy,
        field_si=own,
        include_electrostatic_self_interaction=own,
        field_feature_norms=[1.0 + 0.3 * n for n in range(count)] if norms else None,
    )
    package = converted(model, tmp_path / "p.mdcg", fields)
    kinds = [layer["type"] for layer in package.layers]
    assert kinds.count("reciprocal_field") == steps
    assert kinds.count("total_charge") == steps + 1
    systems = some(("self-images", "molecule"))
    report = verify_package(tmp_path / "p.mdcg", model, systems=systems)
    assert report.passed, str(report)
    assert {"energy", "forces", "stress", "charges"} == {*report.worst()}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_all_structures(dtype: str, build: Any, tmp_path: Path) -> None:
    model = model_of(build).to(getattr(torch, dtype))
    converted(model, tmp_path / "p.mdcg")
    report = verify_package(tmp_path / "p.mdcg", model)
    assert report.passed, str(report)
    assert {d.system for d in report.deviations if d.quantity == "stress"} == {
        *("cubic", "triclinic", "self-images")
    }
    assert "compared with differences of MACE's energies" in report.note


CHANGES: dict[str, dict[str, Any]] = {
    "degrees": {"hidden_irreps": "6x0e+6x1o+6x2e", "max_ell": 3, "correlation": 3},
    "scalars": {"hidden_irreps": "6x0e", "atomic_multipoles_max_l": 0},
    "layers": {"num_interactions": 3},
    "one readout": {"use_last_readout_only": True},
    "repulsion that it does not use": {"pair_repulsion": True},
    "fewer waves": {"kspace_cutoff_factor": 0.8},
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_shapes(case: str, build: Any, tmp_path: Path) -> None:
    from e3nn import o3

    changes = dict(CHANGES[case])
    if "hidden_irreps" in changes:
        changes["hidden_irreps"] = o3.Irreps(changes["hidden_irreps"])
    model = model_of(build, **changes)
    converted(model, tmp_path / "p.mdcg")
    systems = some(("self-images", "molecule"))
    report = verify_package(tmp_path / "p.mdcg", model, systems=systems)
    assert report.passed, str(report)


def test_heads(build: Any, tmp_path: Path) -> None:
    heads = {"heads": ["a", "b"], "atomic_energies": np.array([[-1.5, -7.25], [-1.0, -6.0]])}
    scales = {"atomic_inter_scale": [1.3, 0.8], "atomic_inter_shift": [0.2, 0.1]}
    model = model_of(build, **heads, **scales)
    for head in ("a", "b"):
        converted(model, tmp_path / f"{head}.mdcg", head=head)
        systems = some(("molecule",))
        report = verify_package(tmp_path / f"{head}.mdcg", model, head=head, systems=systems)
        assert report.passed, str(report)


def test_calculator(build: Any, tmp_path: Path) -> None:
    """The calculator of mace-torch gives the same energies and forces."""
    from mace.calculators import MACECalculator

    model = model_of(build)
    converted(model, tmp_path / "p.mdcg", NO_DEFAULTS)
    calc = MDCGCalculator(tmp_path / "p.mdcg")
    assert calc.implemented_properties[-2:] == ["stress", "charges"]
    with default_dtype(torch.float64):  # MACE makes some constants in torch's default type
        options = {"device": "cpu", "default_dtype": "float64", "model_type": "PolarMACE"}
        theirs = MACECalculator(models=[model], **options)
        ion, liquid = molecule("OH"), water(1, seed=4)
        for atoms, charge, spin in ((ion, -1, 1), (liquid, 0, 1), (ion, 0, 2), (liquid, -1, 2)):
            atoms.info |= {"charge": charge, "spin": spin}
            want = [theirs.get_property(name, atoms) for name in ("energy", "forces")]
            got = [calc.get_property(name, atoms) for name in ("energy", "forces")]
            assert abs(got[0] - want[0]) < 1e-9 * len(atoms)
            np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-8)
            assert calc.get_charges(atoms).sum() == pytest.approx(charge, abs=1e-10)
    with pytest.raises(InputError, match=r"the structure has no total_charge, which .* default"):
        calc.get_potential_energy(water(1, seed=4))
    images = [ion, liquid]
    batch = calc.batch(images, ["energy", "forces", "charges"])
    for atoms, found in zip(images, batch, strict=True):
        np.testing.assert_allclose(found["forces"], calc.get_forces(atoms), rtol=0, atol=1e-12)
    moved = liquid.copy()  # in a cell that changes, with the list of before
    moved.set_cell(1.001 * liquid.cell.array, scale_atoms=True)
    fresh = MDCGCalculator(tmp_path / "p.mdcg", skin=0.0)
    np.testing.assert_allclose(calc.get_forces(moved), fresh.get_forces(moved), atol=1e-11)
    liquid.pbc = [True, True, False]
    with pytest.raises(InputError, match="periodic along 2 directions, expected 0 or 3"):
        calc.get_potential_energy(liquid)
    with pytest.raises(PropertyNotImplementedError, match="stresses not implemented"):
        calc.get_property("stresses", ion)
    with pytest.raises(UnsupportedProblemError, match=r"has a long-range sum, .*heat fluxes"):
        calc.get_heat_flux(ion)


def refused(model: Any, message: str, fields: Any = ION) -> None:
    with pytest.raises((UnsupportedProblemError, ValueError), match=message):
        convert_model(model, ConversionOptions(graph_fields=fields))


@pytest.fixture(scope="module")
def small(build: Any) -> Any:
    return model_of(build, num_recursion_steps=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((("total_charge", 0.5),), "total_charge is 0.5, expected a whole number"),
        ((*ION, ("external_field", 1)), "reads no external_field, expected total_charge, total_sp"),
    ],
)
def test_inputs(small: Any, fields: Any, message: str) -> None:
    refused(small, message, fields)


PARTS = {
    "field_dependent_charges_maps.0": "expected AgnosticEmbeddedOneBodyVariableUpdate",
    "field_dependent_charges_maps.0.potential_embedding": "expected AgnosticChargeBiasedLinear",
    "field_dependent_charges_maps.0.readout": "expected GeneralNonLinearBiasReadoutBlock",
    "field_dependent_charges_maps.0.dot_products": "expected SparseUvuTensorProduct of e3nn's",
    "field_dependent_charges_maps.0.nonlinearity": "expected a FullyConnectedNet or a RadialMLP",
    "lr_source_maps.1": "expected EnvironmentDependentSpinSourceBlock",
    "local_electron_energy": "expected OneBodyMLPFieldReadout",
    "electric_potential_descriptor": "expected GTOElectrostaticFeatures",
    "coulomb_energy": "expected GTOElectrostaticEnergy",
    "fukui_source_map": "expected NonLinearBiasReadoutBlock",
}


@pytest.mark.parametrize("part", PARTS)
def test_other_classes(small: Any, part: str) -> None:
    """A part of another class is refused by its name."""
    import copy

    model = copy.deepcopy(small)
    *path, name = part.split(".")
    setattr(model.get_submodule(".".join(path)), name, torch.nn.Identity())
    refused(model, f"{part} is an Identity.*{PARTS[part]}")


def test_zero_charges(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small.lr_source_maps[1], "zero_charges", True)
    refused(small, r"lr_source_maps.1 has charges that are zero \(zero_charges\), which packages")


def test_other_degrees(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small, "atomic_multipoles_max_l", 2)
    refused(small, "the model has multipoles up to l = 2, expected 0 or 1: charges and dipoles")
    monkeypatch.setattr(small, "atomic_multipoles_max_l", 1)
    monkeypatch.setattr(small, "field_feature_max_l", 2)
    refused(small, "the model has field features up to l = 2, expected 0 or 1")
