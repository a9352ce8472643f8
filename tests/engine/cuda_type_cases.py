"""Convolutions of types on a CUDA device, summed by type of the sender, against the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from ..internals.internals import filling_from, ranges_of
from .cuda_models import SHORT_EDGES, check_short_edges, compare_models, evaluate, open_both
from .test_conv_layer import System, system, type_model

# In float64, polynomials replace exact networks; their slopes have errors of about 1e-11.
LIMIT = {"float64": 1e-11, "float32": 1e-5}


LISTS = ["long", "short"]


@pytest.fixture(params=LISTS, autouse=True)
def lists(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In long lists a warp has a receiver; in short lists, the warps of a block share one."""
    if request.param == "long":
        monkeypatch.setenv("EMULATED_CUDA_MULTIPROCESSORS", "1")
    with filling_from(0 if request.param == "long" else 1000):
        yield


def kernels(model: Any) -> set[str]:
    return {kernel["name"] for kernel in json.loads(model.report())["kernels"]}


@covering(
    ["lists"],
    options=[
        {},
        {"hidden": 11, "table": True, "by_pair": True, "flip": True},
        # a unit of constant 1
        {"bias": True, "flip": True, "hidden": 31, "in1": "11x0e", "out": "11x0e+11x1o+11x2e"},
        {"bias": True, "table": True},
        {"hidden": 64, "table": True, "in1": "25x0e", "out": "25x0e+25x1o+25x2e"},
        {"hidden": 40, "lmax": 3, "in1": "13x0e", "out": "13x0e+13x1o+13x2e+13x3o"},
        # three groups of 32 units; in float32, two of 64
        {"hidden": 70, "in1": "25x0e", "out": "25x0e+25x1o+25x2e"},
        {"hidden": 70, "table": True, "in1": "33x0e", "out": "33x0e+33x1o+33x2e"},
    ],
    dtype=["float64", "float32"],
    lists=LISTS,
)
def test_networks(tmp_path: Path, dtype: str, options: dict[str, Any]) -> None:
    models = open_both(type_model(dtype=dtype, **options).write(tmp_path))
    compare_models(*models, system(12, 200), LIMIT[dtype])
    assert "type_sums" in kernels(models[1])


@covering(
    ["lists"],
    blocks=[
        ("5x0e", 0, "5x0e"),
        ("5x0e", 1, "5x0e+5x1o"),
        ("5x0e", 3, "5x0e+5x1o+5x2e+5x3o"),
        ("5x0e", 4, "5x0e+5x1o+5x2e+5x3o+5x4e"),
        ("5x0e", 2, "5x0e+5x2e"),  # harmonics without a path
        ("5x0e", 1, "5x0e+5x1o+5x3o"),  # a block without a path, of a higher degree
        ("5x0e+7x0e", 2, "5x0e+5x1o+7x0e+7x1o+7x2e"),  # several blocks of a degree
        ("5x0e+5x0e", 1, "5x0e+5x1o"),  # several paths to a block
    ],
    table=[False, True],
    lists=LISTS,
)
def test_blocks(tmp_path: Path, blocks: tuple[str, int, str], table: bool) -> None:
    dtype = "float32" if table else "float64"
    models = open_both(type_model(*blocks, table=table, dtype=dtype).write(tmp_path))
    compare_models(*models, system(9, 120), LIMIT[dtype])


@pytest.mark.parametrize("table", [False, True])
def test_types_of_each_list(tmp_path: Path, table: bool) -> None:
    """Results agree while the number of types in lists changes between evaluations."""
    models = open_both(type_model(types=20, table=table, by_pair=True).write(tmp_path))
    s = system(40, 300, seed=2, n_types=20)
    assert len(np.unique(s.types[s.sender])) > 16
    for types in (s.types % 5 * 3 + 2, s.types, 0 * s.types + 7, s.types % 16):
        each = System(s.positions, types.astype(np.int32), *s.edges)
        compare_models(*models, each, LIMIT["float64"])


@pytest.mark.parametrize("edges", [0, 1, 2])
@pytest.mark.parametrize("table", [False, True])
def test_hardly_any_edges(tmp_path: Path, edges: int, table: bool) -> None:
    models = open_both(type_model(table=table).write(tmp_path))
    compare_models(*models, system(4, edges), LIMIT["float64"])
    compare_models(*models, system(8, 60), LIMIT["float64"])
    compare_models(*models, system(4, edges), LIMIT["float64"])


@covering(["lists"], hidden=[6, 70], table=[False, True], dtype=["float64", "float32"], lists=LISTS)
def test_many_neighbours(tmp_path: Path, hidden: int, table: bool, dtype: str) -> None:
    """Results agree for receivers with more edges than one iteration reads."""
    s = system(5, 1500)
    assert np.bincount(s.receiver).max() > 512
    models = open_both(type_model(hidden=hidden, table=table, dtype=dtype).write(tmp_path))
    compare_models(*models, s, 10 * LIMIT[dtype])


def test_many_edges(tmp_path: Path) -> None:
    """Results agree for lists that are divided into ranges."""
    models = open_both(type_model(lmax=1, out="5x0e+5x1o", hidden=4).write(tmp_path))
    with ranges_of(100):
        compare_models(*models, system(200, 850), LIMIT["float64"])


@pytest.mark.parametrize(("dtype", "part"), SHORT_EDGES)
def test_short_edges(tmp_path: Path, dtype: str, part: float) -> None:
    path = type_model(table=True, dtype=dtype).write(tmp_path)
    (tmp_path / "exact").mkdir()
    exact = _core.Model(type_model().write(tmp_path / "exact"), kernels="generic")
    check_short_edges(exact, _core.Model(path, device="cuda"), part)


def test_other_kernels_are_made_where_they_are_needed(tmp_path: Path) -> None:
    path = type_model(types=20).write(tmp_path)
    _, cuda = open_both(path)
    s = system(40, 300, seed=2, n_types=20)
    counts = []
    for types in (s.types % 3, s.types):
        evaluate(cuda, System(s.positions, types, *s.edges))
        counts.append(len(json.loads(cuda.report())["kernels"]))
    assert counts[1] > counts[0]
