"""MACE models in the engine: symmetries, and generated kernels against generic ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import ConversionOptions, convert_model

from ..covering import covering
from ..engine.smoothness import check_smooth
from ..engine.symmetry import Box, check_kernels, check_symmetries
from .conftest import build_model

DENSITY = "RealAgnosticDensityResidualInteractionBlock"

MODELS: dict[str, dict[str, Any]] = {
    # shapes of MACE-medium, with multiplicities that fill no vector
    "medium": {
        "hidden_irreps": "5x0e+5x1o",
        "max_ell": 3,
        "correlation": 3,
        "radial_MLP": [7],
    },
    "density": {
        "first": DENSITY,
        "rest": DENSITY,
        "hidden_irreps": "37x0e+37x1o+37x2e",
        "correlation": 2,
        "distance_transform": "Agnesi",
        "pair_repulsion": True,
    },
}


def write(folder: Path, name: str, dtype: str, radial: str) -> Path:
    from e3nn import o3

    settings = {**MODELS[name]}
    settings["hidden_irreps"] = o3.Irreps(settings["hidden_irreps"])
    package = convert_model(build_model(**settings), ConversionOptions(dtype=dtype, radial=radial))
    tables = [layer["radial"]["table"] for layer in package.layers if layer["type"] == "conv"]
    assert all((table is None) == (radial == "exact") for table in tables)
    package.save(folder / "model.mdcg")
    return folder / "model.mdcg"


@pytest.mark.slow
@covering(name=MODELS, radial=["exact", "table"], dtype=["float64", "float32"])
def test_models(
    name: str, dtype: str, radial: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    path = write(tmp_path, name, dtype, radial)
    model = _core.Model(str(path), kernels="generated")
    box = Box(model, rng, atoms=30)
    check_kernels(path, box)
    check_symmetries(model, rng, box)


@pytest.mark.parametrize("radial", ["exact", "table"])
def test_smooth_where_densities_and_repulsion_end(radial: str, tmp_path: Path) -> None:
    path = write(tmp_path, "density", "float64", radial)
    model = _core.Model(str(path), kernels="generic")
    radii = {0: 0.31, 1: 0.66}  # Å, covalent: their sum ends the repulsion
    for types in ((0, 0), (0, 1), (1, 1)):
        for cutoff in (model.r_max, radii[types[0]] + radii[types[1]]):
            others = 5 if cutoff > 3.0 else 0
            check_smooth(model, cutoff, others, types, table=radial == "table")
