"""Trained checkpoints, as packages on a device, against the original model.

No file of tests by its name: test_cuda_packages.py runs it on a device, emulated or real.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mdcg.patch import load_model

from ..engine.originals import check_on_device
from .conftest import DATA


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["nequip_water.ckpt", "nequip_alloy.ckpt"])
def test_checkpoints(name: str, dtype: str, tmp_path: Path) -> None:
    check_on_device(load_model(DATA / name), dtype, tmp_path / "model.mdcg")
