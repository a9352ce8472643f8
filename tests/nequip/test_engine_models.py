"""NequIP models in the engine where their functions end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mdcg import _core
from mdcg.package import ConversionOptions, convert_model

from ..engine.smoothness import check_smooth


@pytest.mark.parametrize("radial", ["exact", "table"])
def test_smooth_at_cutoffs_of_types(
    radial: str, build: Callable[..., torch.nn.Module], tmp_path: Path
) -> None:
    package = convert_model(build("per type"), ConversionOptions(radial=radial))
    package.save(tmp_path / "model.mdcg")
    model = _core.Model(str(tmp_path / "model.mdcg"), kernels="generic")
    symbols = package.type_names
    # cutoffs of both directions of an edge, which may differ
    cutoffs = {("H", "H"): (3.0,), ("H", "C"): (3.0, 3.5), ("C", "O"): (2.5, 4.0)}
    for pair, lengths in cutoffs.items():
        types = (symbols.index(pair[0]), symbols.index(pair[1]))
        for length in lengths:
            check_smooth(model, length, 5, types, table=radial == "table")
