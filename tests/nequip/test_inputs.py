"""NequIP models that read numbers of the system, such as a charge, as packages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdcg import _core
from mdcg.package import ConversionOptions, Package, convert_model
from mdcg.package.verification import verify_package
from mdcg.patch import nequip_batch, nequip_info

from .conftest import MODELS
from .test_package import structure

FIELDS = [
    {"field": "charge", "num_features": 4, "min": -2, "max": 2},
    {"field": "spin", "num_features": 3, "min": 1, "max": 3},
]
VALUES = ((0, 1), (-2, 3), (2, 1), (1, 2))


@pytest.fixture(scope="module", autouse=True)
def fields() -> None:
    from nequip.data import register_fields

    register_fields(graph_fields=["charge", "spin"], long_fields=["charge", "spin"])


def compare(
    model: torch.nn.Module, package: Package, engine: _core.Model, values: tuple[int, int]
) -> float:
    """Compare a package with the model in float64; return the energy."""
    info = nequip_info(model)
    atoms, types = structure(np.random.default_rng(4), len(info.type_names))
    from ase.neighborlist import neighbor_list

    i, j, unit = neighbor_list("ijS", atoms, info.r_max)
    cell = np.where(np.asarray(atoms.pbc)[:, None], atoms.cell.array, 0.0)
    data = nequip_batch(info, types, atoms.positions, cell, np.array([i, j]), unit.astype(float))
    own = {f["field"]: torch.tensor([[v]]) for f, v in zip(FIELDS, values, strict=True)}
    out = model({**data, **own})
    found = engine.evaluate(
        atoms.positions,
        types.astype(np.int32),
        cell=atoms.cell.array,
        periodic=list(atoms.pbc),
        inputs=np.array(values, np.float64),
    )
    energies, forces = (out[n].detach().numpy() for n in ("atomic_energy", "forces"))
    limit = 1e-11 * max(1.0, np.abs(energies).max())
    assert np.abs(found["energies"] - energies.reshape(-1)).max() < limit
    assert np.abs(found["forces"] - forces).max() < 1e-11 * max(1.0, np.abs(forces).max())
    return float(found["energy"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [*((name, {}) for name in MODELS), ("preset-like", {"convnet_resnet": True})],
)
def test_values_agree_with_the_model(
    name: str, changes: dict[str, Any], build: Callable[..., torch.nn.Module], tmp_path: Path
) -> None:
    model = build(name, categorical_graph_field_embed=FIELDS, **changes)
    for defaults in ((("charge", 0), ("spin", 1)), ()):
        package = convert_model(model, ConversionOptions(graph_fields=defaults))
        assert package.manifest["format"] == (3 if defaults else 4)
        package.save(tmp_path / "p.mdcg")
        engine = _core.Model(str(tmp_path / "p.mdcg"))
        energies = {compare(model, package, engine, values) for values in VALUES}
        assert len(energies) == len(VALUES)
        assert verify_package(tmp_path / "p.mdcg", model).passed
