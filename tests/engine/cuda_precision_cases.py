"""Precisions of products that are chosen when a package is opened; run as cuda_cases.py is."""

from __future__ import annotations

import ctypes
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from mdcg import MDCGCalculator, _core
from mdcg.errors import UnsupportedProblemError
from mdcg.package import Package

from .capi import Rank, library
from .cuda_cases import DATA, NAMES, assert_equal, saved, water
from .test_program import two_layers

# of forces, relative to the largest one
ERRORS = {"tf32": (1e-6, 3e-3), "bf16": (1e-5, 3e-2)}


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
def test_rounded_products(tmp_path: Path, name: str) -> None:
    path = saved(Package.open(DATA / f"{name}_float32.mdcg"), tmp_path / "p.mdcg")
    positions, types, cell = water()
    system = {"cell": cell, "periodic": (True, True, True)}
    want = _core.Model(str(path), kernels="generic").evaluate(positions, types, **system)["forces"]
    scale = np.abs(want).max()
    plain = _core.Model(str(path), device="cuda").evaluate(positions, types, **system)["forces"]
    before = 10 * np.abs(plain - want).max() / scale  # what is not rounded is clearly better
    for precision, (least, most) in ERRORS.items():
        model = _core.Model(str(path), device="cuda", precision=precision)
        found = [model.evaluate(positions, types, **system) for _ in range(3)]
        error = np.abs(found[0]["forces"] - want).max() / scale
        assert least < error < most, f"{precision}: {error:.1e}"
        assert error > before
        before = error
        for each in found[1:]:
            assert_equal(each, found[0])
        assert f"{precision})" in model.summary()
        assert json.loads(model.report())["precision"] == precision


def test_precisions_of_packages(tmp_path: Path) -> None:
    """Those that say nothing new change nothing."""
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
        ("float32", "cpu", "tf32", "precision is 'tf32', and CPUs have no such arithmetic"),
        ("float32", "cpu", "fp64", "converted to float32, .*mdcg-patch --precision fp64"),
        ("float64", "cuda", "fp32", "converted to float64, .*mdcg-patch --precision fp32"),
        ("float64", "cuda", "bf16", "converted to float64, .*mdcg-patch --precision fp32"),
    ],
)
def test_what_cannot_be_had(
    tmp_path: Path, dtype: str, device: str, precision: str, sentence: str
) -> None:
    path = saved(two_layers(dtype).package(**NAMES), tmp_path / "p.mdcg")
    with pytest.raises(UnsupportedProblemError, match=sentence) as error:
        MDCGCalculator(path, device=device, precision=precision)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"precision is 'half', expected fp32 .or float32.,"):
        MDCGCalculator(path, device=device, precision="half")


def test_c_interface(tmp_path: Path) -> None:
    path = saved(two_layers("float32").package(**NAMES), tmp_path / "p.mdcg")
    model = ctypes.c_void_p()
    rank = Rank.__new__(Rank)
    rank.lib = library()
    with pytest.raises(RuntimeError, match="CPUs have no such arithmetic"):
        rank.open(str(path), model, device="cpu", kernels="auto", precision="tf32")
    rank.open(str(path), model, device="cuda", kernels="auto", precision="tf32")
    rank.lib.mdcg_close(model)
