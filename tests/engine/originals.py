"""Packages on a device against the trained models that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mdcg.package import ConversionOptions, convert_model
from mdcg.package.verification import verify_package

#: Of float64, in the units of verify_package, whose own limits are wider. Found: 5e-12.
LIMIT = 1e-10


def check_on_device(model: Any, dtype: str, path: Path) -> None:
    """Convert a model and compare the package, on a device, with it."""
    convert_model(model, ConversionOptions(dtype=dtype)).save(path)
    check = verify_package(path, model, device="cuda")
    assert check.dtype == dtype
    assert check.device == "cuda"
    assert check.passed, str(check)
    assert {row.quantity for row in check.deviations} == {"energy", "forces", "stress"}
    if dtype == "float64":
        assert max(row.error for row in check.deviations) < LIMIT, str(check)
