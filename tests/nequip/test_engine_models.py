"""NequIP models in the engine: symmetries, and generated kernels against generic ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from mdcg import _core
from mdcg.package import ConversionOptions, convert_model

from ..engine.symmetry import Box, check_kernels, check_symmetries
from .conftest import MODELS


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("radial", ["exact", "table"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
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
