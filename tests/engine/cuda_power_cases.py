"""Tables of weights on a device against the processor's: cases that test_cuda_text_edges.py runs
in a process with emulated CUDA, and that run on a device as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..internals.internals import core
from .cuda_edge_cases import R_MAX, TYPES, deviation, radial_network
from .small_package import SmallPackage


@pytest.mark.parametrize(("double", "tolerance"), [(True, 1e-13), (False, 5e-7)])
@pytest.mark.parametrize("kind", ["silu", "norms", "tables", "flat"])
def test_power_tables(kind: str, double: bool, tolerance: float, tmp_path: Path, rng: Any) -> None:
    """Polynomials of intervals are the splines, for the pairs of types of two lists."""
    package = SmallPackage(["H", "O", "Fe"], R_MAX)
    knots, n = 30, 60
    radial = {**radial_network(kind, package, rng, TYPES), "table": {"knots": knots, "error": 0.0}}
    package.layer("conv", radial=radial)
    path = package.write(tmp_path / "radial.mdcg")
    layers = radial["layers"]
    outputs = package.tensors[layers[-1]["weight"]].shape[1]
    r_max = np.broadcast_to(package.tensors.get(radial["r_max"], R_MAX), (TYPES, TYPES))
    types = np.array([0, 1, 2, 1], dtype=np.int32)
    first = (np.array([1, 3], dtype=np.int32), np.array([0, 0], dtype=np.int32))
    second = (np.array([2, 0, 1], dtype=np.int32), np.array([1, 2, 0], dtype=np.int32))
    found = core.cuda_power_table(path, 0, types, [first, first, second], double)
    one_table = kind == "silu"
    assert found["built"] == [True, False, not one_table]
    coefficients, places = found["coefficients"], found["places"]
    assert found["bytes"] >= coefficients.size * (8 if double else 4)
    assert not coefficients[0].any()
    assert not coefficients[:, ::2].any()
    for i, j in ((0, 1), (1, 2), (2, 0)):
        root_first, inverse_step, row = places[i, j]
        lengths = np.linspace(r_max[i, j] / 16, r_max[i, j] * (1 - 1e-9), n)
        place = (np.sqrt(lengths) - root_first) * inverse_step
        interval = np.clip(place.astype(int), 0, knots - 1)
        t = (place - interval)[:, None]
        a = coefficients[int(row) + interval, 1 : 2 * outputs : 2]
        value = ((a[..., 3] * t + a[..., 2]) * t + a[..., 1]) * t + a[..., 0]
        slope = (3 * a[..., 3] * t + 2 * a[..., 2]) * t + a[..., 1]
        slope *= (inverse_step / (2 * np.sqrt(lengths)))[:, None]
        d = rng.normal(size=(n, outputs))
        want = core.radial_weights(path, 0, lengths, i, j, d, True, knots)
        assert deviation(value, want[0]) < tolerance
        assert deviation((slope * d).sum(axis=1), want[1]) < 20 * tolerance
    # pairs of types without edges
    assert (places[2, 2, 2] == -1) == (not one_table)
