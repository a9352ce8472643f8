"""Trained checkpoints, as packages on a device, against the original model.

No file of tests by its name: test_cuda_packages.py runs it on a device, emulated or real.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mdcg.patch import load_model

from ..engine.originals import check_on_device


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["mace_water_e3nn044.model", "mace_alloy_density_e3nn044.model"])
def test_checkpoints(
    name: str, dtype: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    check_on_device(load_model(checkpoint(name)), dtype, tmp_path / "model.mdcg")
