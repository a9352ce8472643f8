"""Systems in domains against the same systems whole, on CPUs and devices."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdcg import _core

Array = NDArray[Any]
RESULTS = {"virial": True, "virials": True, "descriptors": True}


def box(
    repeats: tuple[int, int, int], num_types: int = 2, seed: int = 0, skew: float = 0.0
) -> tuple[Array, Array, Array]:
    """Return positions, types and the cell of a displaced crystal."""
    rng = np.random.default_rng(seed)
    cell = np.diag(np.array(repeats) * 2.3) + skew * rng.normal(size=(3, 3))
    grid = np.stack(np.meshgrid(*map(np.arange, repeats), indexing="ij"), -1).reshape(-1, 3)
    positions = (grid / np.array(repeats)) @ cell + rng.normal(scale=0.15, size=grid.shape)
    return positions, rng.integers(0, num_types, len(grid)).astype(np.int32), cell


def report(model: _core.Model) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(model.report())
    return found


def opened(path: str, least: int, system: dict[str, Any], **options: Any) -> _core.Model:
    """Return a model with so little memory that a system needs `least` domains or more."""
    whole = _core.Model(path, **options)
    whole.evaluate(**system)
    size = report(whole)["bytes"]
    for _ in range(20):
        size *= 0.75
        model = _core.Model(path, memory=f"{size / 1e6:.6f} MB", **options)
        model.evaluate(**system)
        if report(model).get("domains", 1) >= least:
            return model
    raise AssertionError(f"no memory gives {least} domains")


def compare(whole: dict[str, Any], divided: dict[str, Any], limit: float) -> None:
    """Check that results agree up to `limit` of the largest number of each kind plus 0.01."""
    assert set(whole) == set(divided)
    for name, want in whole.items():
        size = np.abs(want).max(initial=0.0)
        np.testing.assert_allclose(
            divided[name], want, rtol=0, atol=limit * (size + 0.01), err_msg=name
        )
