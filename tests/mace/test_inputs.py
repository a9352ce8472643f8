"""MACE models that read numbers of the system, such as a charge, as packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import _core
from mdcg.errors import UnsupportedProblemError
from mdcg.package import ConversionOptions, Package, convert_model
from mdcg.package.verification import package_reference, verify_package
from mdcg.patch import mace_info
from mdcg.patch._frameworks import default_dtype
from mdcg.patch.evaluate import evaluate_structure
from mdcg.patch.models import complete_cell
from mdcg.patch.systems import Structure, verification_systems

from .conftest import build_model
from .test_package import AGNOSTIC, ATTENTION, DENSITY, DENSITY_RESIDUAL, NONLINEAR, RESIDUAL

SPECS: dict[str, dict[str, Any]] = {
    "total_charge": {
        "type": "categorical",
        "per": "graph",
        "in_dim": 1,
        "emb_dim": 5,
        "num_classes": 7,
        "offset": 3,
    },
    "total_spin": {"type": "continuous", "per": "graph", "in_dim": 1, "emb_dim": 3},
    "elec_temp": {
        "type": "continuous",
        "per": "graph",
        "in_dim": 1,
        "emb_dim": 4,
        "use_bias": False,
    },
}
VALUES = ((0.0, 1.0, 0.5), (-3.0, 2.0, 0.0), (3.0, 5.0, -1.25), (2.0, 1.0, 0.5))
DEFAULTS = (("total_charge", 0), ("total_spin", 1), ("elec_temp", 0.5))


def read_model(
    first: str = AGNOSTIC, rest: str = RESIDUAL, readout: bool = True, **changes: Any
) -> torch.nn.Module:
    """Return a model that reads the inputs of SPECS."""
    settings = {"embedding_specs": SPECS, "use_embedding_readout": readout, **changes}
    return build_model(first, rest, **settings)


def opened(package: Package, folder: Path, name: str = "p.mdcg", **options: Any) -> _core.Model:
    package.save(folder / name)
    return _core.Model(str(folder / name), **options)


def wanted(model: torch.nn.Module, system: Structure, values: Sequence[float]) -> dict[str, Any]:
    """Return energy, forces and stress of the model itself, in float64."""
    own = replace(system, inputs=dict(zip(SPECS, values, strict=True)))
    with default_dtype(torch.float64):
        _, found = evaluate_structure(model, mace_info(model), own)
    return {name: value.detach().numpy() for name, value in found.items() if value is not None}


def evaluate(
    engine: _core.Model, package: Package, system: Structure, values: Sequence[float] | None
) -> dict[str, Any]:
    numbers = package.atomic_numbers
    assert numbers is not None
    types = np.array([numbers.index(int(z)) for z in system.atomic_numbers], np.int32)
    return engine.evaluate(
        system.positions,
        types,
        cell=complete_cell(system.cell, system.pbc),
        periodic=list(system.pbc),
        virial=True,
        inputs=None if values is None else np.array(values),
    )


def check(found: Mapping[str, Any], want: Mapping[str, Any], limit: float = 1e-10) -> None:
    energy = float(want["energy"][0])
    assert abs(found["energy"] - energy) <= 1e-2 * limit * max(1.0, abs(energy))
    size = max(1.0, float(np.abs(want["forces"]).max()))
    assert np.abs(found["forces"] - want["forces"]).max() <= limit * size


BLOCKS = [
    (AGNOSTIC, RESIDUAL),
    (RESIDUAL, RESIDUAL),
    (DENSITY, DENSITY_RESIDUAL),
    (DENSITY_RESIDUAL, DENSITY_RESIDUAL),
    (ATTENTION, ATTENTION),
    (NONLINEAR, NONLINEAR),
]


@pytest.mark.parametrize("defaults", [DEFAULTS, DEFAULTS[1:]], ids=["defaults", "no charge"])
@pytest.mark.parametrize(("first", "rest"), BLOCKS)
def test_values_agree_with_the_model(first: str, rest: str, defaults: Any, tmp_path: Path) -> None:
    model = read_model(first, rest, readout=first != RESIDUAL)
    package = convert_model(model, ConversionOptions(graph_fields=defaults))
    engine = opened(package, tmp_path)
    systems = verification_systems(package.atomic_numbers or [], package.r_max, seed=5)
    energies = set()
    for values in VALUES:
        for system in (systems[1], systems[4]):
            found = evaluate(engine, package, system, values)
            check(found, wanted(model, system, values))
        energies.add(round(found["energy"], 6))
    assert len(energies) == len({*VALUES})


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_switching_gives_the_bits_of_a_fresh_model(dtype: str, tmp_path: Path) -> None:
    model = read_model(NONLINEAR, RESIDUAL)
    options = ConversionOptions(graph_fields=DEFAULTS, dtype=dtype)
    package = convert_model(model, options)
    engine = opened(package, tmp_path)
    system = verification_systems(package.atomic_numbers or [], package.r_max, seed=5)[0]
    order = [*VALUES, VALUES[1], None, VALUES[2], VALUES[0], None]
    found = [evaluate(engine, package, system, values) for values in order]
    for values, each in zip(order, found, strict=True):
        fresh = evaluate(_core.Model(str(tmp_path / "p.mdcg")), package, system, values)
        for name in ("energies", "forces", "virial"):
            assert np.array_equal(each[name], fresh[name]), (values, name)
        check(
            each, wanted(model, system, values or VALUES[0]), 1e-10 if dtype == "float64" else 3e-5
        )
    # the defaults are those of a package without inputs
    removed = ("inputs", "input_network", "options")
    plain = Package(
        {k: v for k, v in package.manifest.items() if k not in removed},
        {name: t for name, t in package.tensors.items() if "input" not in name},
    )
    old = evaluate(opened(plain, tmp_path, "q.mdcg"), plain, system, None)
    assert np.array_equal(old["forces"], found[0]["forces"])


def test_verification_uses_several_values(tmp_path: Path) -> None:
    for fields in (DEFAULTS, ()):
        model = read_model()
        package = convert_model(model, ConversionOptions(graph_fields=fields))
        package.save(tmp_path / "p.mdcg")
        reference = package_reference(package, model)
        inputs = [known.system.inputs for known in reference.structures]
        assert len({tuple(each.values()) for each in inputs}) > 3
        if fields:
            assert inputs[0] == inputs[2] == dict(fields)
        assert verify_package(tmp_path / "p.mdcg", model, reference=reference).passed
        package.tensors["conv_0.x_table.by_inputs"][3] *= 1.001
        package.save(tmp_path / "p.mdcg")
        assert not verify_package(tmp_path / "p.mdcg", model, reference=reference).passed


def test_formats(tmp_path: Path) -> None:
    """Older versions of mdcg take the defaults as values that the conversion has fixed."""
    whole = {name: SPECS[name] for name in ("total_charge", "total_spin")}
    model = read_model(embedding_specs=whole)
    for fields, number in ((DEFAULTS[:2], 3), (DEFAULTS[:1], 4), ((), 4)):
        package = convert_model(model, ConversionOptions(graph_fields=fields))
        assert package.manifest["format"] == number
        package.save(tmp_path / "p.mdcg")
        again = Package.open(tmp_path / "p.mdcg")
        assert again.manifest["format"] == number
        assert again.inputs == package.inputs
        assert [(e["name"], e["default"]) for e in package.inputs if "default" in e] == list(fields)
    assert package.inputs[0]["lowest"] == -3
    assert package.inputs[0]["count"] == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, "reads total_charge of each system, which was not given and has no default, "
               "expected a whole number from -3 to 3: give it, or convert the model with --set "
               "total_charge=VALUE"),
        ((4, 1, 0), "total_charge is 4, expected a whole number from -3 to 3"),
        ((0.5, 1, 0), "total_charge is 0.5, expected a whole number from -3 to 3"),
        ((0, 1.5, 0), "total_spin is 1.5, expected a whole number"),
        ((0, 1, np.inf), "elec_temp is inf, expected a finite number"),
        ((0, 1, 1e308), "weights of the model are not finite numbers, expected values like those"),
        ((0, 1), r"inputs has shape \(2\), expected \(3,\)"),
    ],
)  # fmt: skip
def test_unusable_values(values: Any, message: str, tmp_path: Path) -> None:
    model = read_model()
    options = ConversionOptions(graph_fields=DEFAULTS[1:], dtype="float32")
    package = convert_model(model, options)
    engine = opened(package, tmp_path)
    system = verification_systems(package.atomic_numbers or [], package.r_max, seed=5)[4]
    before = evaluate(engine, package, system, VALUES[1])
    with pytest.raises(_core.EngineError, match=message) as error:
        evaluate(engine, package, system, values)
    assert "\n" not in str(error.value)
    again = evaluate(engine, package, system, VALUES[1])
    assert np.array_equal(before["forces"], again["forces"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((("total_charge", 4),), "total_charge is 4, expected a whole number from -3 to 3"),
        ((("total_spin", 0.5),), "total_spin is 0.5, expected a whole number"),
        ((("phase", 1),), "the model reads no phase, expected elec_temp, total_charge, total_spin"),
    ],
)
def test_unusable_defaults(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_model(read_model(), ConversionOptions(graph_fields=fields))


def test_models_that_read_inputs_of_atoms_or_vectors() -> None:
    for change, message in (
        ({"per": "node"}, "reads 'total_charge' of each atom, which packages do not have"),
        (
            {"type": "continuous", "in_dim": 3},
            "reads 'total_charge' as 3 numbers of each structure, and inputs of packages are",
        ),
    ):
        specs = {"total_charge": {**SPECS["total_charge"], **change}}
        with pytest.raises(UnsupportedProblemError, match=message):
            convert_model(read_model(embedding_specs=specs))


def test_batch_of_different_values(tmp_path: Path) -> None:
    model = read_model()
    package = convert_model(model, ConversionOptions(graph_fields=DEFAULTS))
    engine = opened(package, tmp_path)
    systems = verification_systems(package.atomic_numbers or [], package.r_max, seed=5)
    systems = (systems[4], systems[0], systems[5], systems[4], systems[1], systems[6])
    nan = float("nan")
    values = [VALUES[1], VALUES[2], (nan, nan, nan), VALUES[1], VALUES[0], (-3, 2, nan)]
    numbers = package.atomic_numbers or []
    types = [numbers.index(int(z)) for system in systems for z in system.atomic_numbers]
    batch: dict[str, Any] = {
        "first_node": np.cumsum([0, *(len(system.positions) for system in systems)]),
        "types": np.array(types, np.int32),
        "positions": np.concatenate([system.positions for system in systems]),
        "cells": np.array([complete_cell(system.cell, system.pbc) for system in systems]),
        "periodic": np.array([system.pbc for system in systems]),
    }
    found = engine.evaluate_batch(**batch, inputs=np.array(values), virial=True, virials=True)
    for number, (system, own) in enumerate(zip(systems, values, strict=True)):
        rows = slice(*batch["first_node"][number : number + 2])
        alone = evaluate(engine, package, system, own)
        assert found["energy"][number] == pytest.approx(alone["energy"], rel=1e-13)
        assert np.abs(found["forces"][rows] - alone["forces"]).max() < 1e-12
        assert np.abs(found["virial"][number] - alone["virial"]).max() < 1e-11
        assert np.abs(found["virials"][rows].sum(axis=0) - alone["virial"]).max() < 1e-11
        assert found["energies"][rows].sum() == pytest.approx(alone["energy"], rel=1e-13)
    values[3] = (9, 1, 0)
    with pytest.raises(_core.EngineError, match=r"^system 3 of the batch: total_charge is 9, exp"):
        engine.evaluate_batch(**batch, inputs=np.array(values))
    values[3], atom = VALUES[1], batch["first_node"][3] + 1
    batch["positions"][atom] = np.nan
    with pytest.raises(_core.EngineError, match=f"^system 3 of the batch: .* atom {atom} at"):
        engine.evaluate_batch(**batch, inputs=np.array(values))


def test_domains_have_the_inputs_of_the_system(tmp_path: Path) -> None:
    model = read_model()
    package = convert_model(model, ConversionOptions(graph_fields=DEFAULTS))
    rng = np.random.default_rng(2)
    grid = np.stack(np.meshgrid(*3 * [np.arange(8)], indexing="ij"), axis=-1).reshape(-1, 3)
    positions = 2.3 * grid + rng.uniform(-0.2, 0.2, grid.shape)
    cell = 8 * 2.3 * np.eye(3)
    numbers = rng.choice([1, 8], len(grid))
    system = Structure("crystal", numbers, positions, cell, (True, True, True))
    whole = opened(package, tmp_path)
    divided = _core.Model(str(tmp_path / "p.mdcg"), memory="4 MB")
    for values in (VALUES[1], None, VALUES[2]):
        found, want = (evaluate(m, package, system, values) for m in (divided, whole))
        assert "domains" in divided.report()
        assert found["energy"] == pytest.approx(want["energy"], rel=1e-12)
        assert np.abs(found["forces"] - want["forces"]).max() < 1e-10
