"""NequIP models in the engine: symmetries, and generated kernels against generic ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mdcg import _core
from mdcg.package import ConversionOptions, convert_model

from ..covering import covering
from ..engine.smoothness import check_smooth
from ..engine.symmetry import Box, check_kernels, check_symmetries
from .conftest import MODELS


@pytest.mark.slow
@covering(name=MODELS, radial=["exact", "table"], dtype=["float64", "float32"])
def test_models(
    name: str,
    dtype: str,
    radial: str,
    build: Callable[..., torch.nn.Module],
    tmp_path: Path,
    rng: np.random.Generator,
) -> None:
    # multiplicities that are no multiple of a vector: below one, and between two and three
    changes = {"num_features": [37, 6]} if name == "pair potential" else {}
    package = convert_model(build(name, **changes), ConversionOptions(dtype=dtype, radial=radial))
    path = tmp_path / "model.mdcg"
    package.save(path)
    model = _core.Model(str(path), kernels="generated")
    box = Box(model, rng, atoms=30)
    check_kernels(path, box)
    check_symmetries(model, rng, box)


@pytest.mark.parametrize("radial", ["exact", "table"])
def test_smooth_at_cutoffs_of_types(
    radial: str, build: Callable[..., torch.nn.Module], tmp_path: Path
) -> None:
    package = convert_model(build("per type"), ConversionOptions(radial=radial))
    package.save(tmp_path / "model.mdcg")
    model = _core.Model(str(tmp_path / "model.mdcg"), kernels="generic")
    symbols = package.type_names
    # of an edge's two directions, of which one may end before the other
    cutoffs = {("H", "H"): (3.0,), ("H", "C"): (3.0, 3.5), ("C", "O"): (2.5, 4.0)}
    for pair, lengths in cutoffs.items():
        types = (symbols.index(pair[0]), symbols.index(pair[1]))
        for length in lengths:
            check_smooth(model, length, 5, types, table=radial == "table")
