"""Named precisions when a package is opened; run like cuda_cases.py."""

from __future__ import annotations

import ctypes
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mdcg import MDCGCalculator, _core
from mdcg.errors import UnsupportedProblemError

from .capi import Rank, library
from .cuda_cases import NAMES, assert_equal, saved
from .test_program import two_layers


def test_precisions_of_packages(tmp_path: Path) -> None:
    """Naming the package's own precision changes nothing."""
    for dtype, precision in (("float32", "fp32"), ("float64", "fp64")):
        path = saved(two_layers(dtype).package(**NAMES), tmp_path / "p.mdcg")
        positions, types = np.random.default_rng(0).uniform(0, 3, (5, 3)), np.arange(5) % 3
        for device, name in product(("cpu", "cuda"), (precision, dtype)):
            plain, named = (
                _core.Model(str(path), device=device, precision=each) for each in ("", name)
            )
            assert_equal(named.evaluate(positions, types), plain.evaluate(positions, types))
        assert json.loads(named.report())["precision"] == precision


@pytest.mark.parametrize(
    ("dtype", "device", "precision", "sentence"),
    [
        ("float32", "cpu", "fp64", "converted to float32, .*mdcg-patch --precision fp64"),
        ("float64", "cuda", "fp32", "converted to float64, .*mdcg-patch --precision fp32"),
    ],
)
def test_what_cannot_be_had(
    tmp_path: Path, dtype: str, device: str, precision: str, sentence: str
) -> None:
    path = saved(two_layers(dtype).package(**NAMES), tmp_path / "p.mdcg")
    with pytest.raises(UnsupportedProblemError, match=sentence) as error:
        MDCGCalculator(path, device=device, precision=precision)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"precision is 'half', expected fp32 .or float32. or fp"):
        MDCGCalculator(path, device=device, precision="half")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_removed_modes(tmp_path: Path, device: str, precision: str) -> None:
    path = saved(two_layers("float32").package(**NAMES), tmp_path / "p.mdcg")
    sentence = f"precision is '{precision}', a mode that was removed: leave it out, and float32 "
    with pytest.raises(ValueError, match=sentence):
        MDCGCalculator(path, device=device, precision=precision)


def test_c_interface(tmp_path: Path) -> None:
    path = saved(two_layers("float32").package(**NAMES), tmp_path / "p.mdcg")
    model = ctypes.c_void_p()
    rank = Rank.__new__(Rank)
    rank.lib = library()
    with pytest.raises(RuntimeError, match="a mode that was removed"):
        rank.open(str(path), model, device="cpu", kernels="auto", precision="tf32")
    rank.open(str(path), model, device="cuda", kernels="auto", precision="fp32")
    rank.lib.mdcg_close(model)
