"""MACE models in the engine where their functions end."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg import _core
from mdcg.package import ConversionOptions, convert_model

from ..engine.smoothness import check_smooth
from .conftest import build_model

DENSITY = "RealAgnosticDensityResidualInteractionBlock"


def write(folder: Path, radial: str) -> Path:
    from e3nn import o3

    model = build_model(
        first=DENSITY,
        rest=DENSITY,
        hidden_irreps=o3.Irreps("7x0e+7x1o"),
        correlation=2,
        distance_transform="Agnesi",
        pair_repulsion=True,
    )
    package = convert_model(model, ConversionOptions(radial=radial))
    tables = [layer["radial"]["table"] for layer in package.layers if layer["type"] == "conv"]
    assert all((table is None) == (radial == "exact") for table in tables)
    package.save(folder / "model.mdcg")
    return folder / "model.mdcg"


@pytest.mark.parametrize("radial", ["exact", "table"])
def test_smooth_where_densities_and_repulsion_end(radial: str, tmp_path: Path) -> None:
    path = write(tmp_path, radial)
    model = _core.Model(str(path), kernels="generic")
    radii = {0: 0.31, 1: 0.66}  # Å, covalent: their sum ends the repulsion
    for types in ((0, 0), (0, 1), (1, 1)):
        for cutoff in (model.r_max, radii[types[0]] + radii[types[1]]):
            others = 5 if cutoff > 3.0 else 0
            check_smooth(model, cutoff, others, types, table=radial == "table")
