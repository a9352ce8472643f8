"""Convolutions of types, which are sums over edges by type of the sender, against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package

from . import reference
from .test_conv_layer import DTYPES, TOLERANCE, System, compare, system, type_model

pytestmark = pytest.mark.compiler


@DTYPES
@pytest.mark.parametrize(
    ("in1", "lmax", "out", "options"),
    [
        ("5x0e", 2, "5x0e+5x1o+5x2e", {"flip": True}),
        ("5x0e", 4, "5x0e+5x1o+5x2e+5x3o+5x4e", {"by_pair": True}),
        ("5x0e", 2, "5x0e+5x2e", {}),  # harmonics without a path
        # a block without a path, of a higher degree
        ("5x0e", 1, "5x0e+5x1o+5x3o", {}),
        ("5x0e+7x0e", 2, "5x0e+5x1o+7x0e+7x1o+7x2e", {}),  # several blocks of a degree
        ("5x0e+5x0e", 1, "5x0e+5x1o", {}),  # several paths to a block
        ("40x0e", 3, "40x0e+40x1o+40x2e+40x3o", {"hidden": 70, "bias": True}),
    ],
)
def test_blocks(
    in1: str, lmax: int, out: str, options: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    path = type_model(in1, lmax, out, dtype=dtype, **options).write(tmp_path)
    compare(path, system(12, 200), *TOLERANCE[dtype])


@DTYPES
def test_many_neighbours(dtype: str, tmp_path: Path) -> None:
    """Results agree for receivers with more edges than a block."""
    s = system(5, 1500)
    assert np.bincount(s.receiver).max() > 256
    path = type_model("5x0e", 2, "5x0e+5x1o+5x2e", dtype=dtype).write(tmp_path)
    compare(path, s, *(10 * part for part in TOLERANCE[dtype]))


@pytest.mark.parametrize(("table", "limit"), [(False, 1e-11), (True, 1e-10)])
def test_types_of_each_list(table: bool, limit: float, tmp_path: Path) -> None:
    """Results agree while the types and the number of edges change between evaluations."""
    path = type_model("5x0e", 2, "5x0e+5x1o+5x2e", types=20, table=table).write(tmp_path)
    model = _core.Model(path, kernels="generic")
    s = system(40, 300, seed=2, n_types=20)
    assert len(np.unique(s.types[s.sender])) > 16
    lists = [
        System(s.positions, types.astype(np.int32), s.sender, s.receiver, s.shifts)
        for types in (s.types % 5 * 3 + 2, s.types, 0 * s.types + 7, s.types % 16)
    ]
    for each in (*lists, system(4, 0), system(4, 1), lists[0]):
        want = reference.evaluate(
            Package.open(path), each.positions, each.types, each.sender, each.receiver, each.shifts
        )
        found = model.evaluate(each.positions, each.types, edges=each.edges, virial=True)
        for name in ("energies", "forces", "virial"):
            expected = getattr(want, name).detach().numpy()
            error = np.abs(found[name] - expected).max()
            assert error < limit * max(np.abs(expected).max(), 1e-10), name
