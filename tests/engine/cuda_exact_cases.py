"""Exact radial networks on a CUDA device as polynomials, against the processor's networks.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from .cuda_models import evaluate, open_both
from .cuda_table_cases import compare
from .test_conv_layer import System, system, two_layers, type_model

LIMIT = 1e-11
STEEP = 3000.0


def kernels(model: Any) -> set[str]:
    return {kernel["name"] for kernel in json.loads(model.report())["kernels"]}


@pytest.mark.parametrize("options", [{"by_pair": True}, {"flip": True}])
def test_networks(tmp_path: Path, options: dict[str, Any]) -> None:
    compare(two_layers(**options).write(tmp_path), system(9, 120), LIMIT)


def steep(factor: float, **options: Any) -> Any:
    model = two_layers(**options)
    for name, tensor in model.package.tensors.items():
        if tensor.ndim == 2 and tensor.shape[0] == 8 and tensor.dtype.kind == "f":
            model.package.tensors[name] = (factor * tensor).astype(tensor.dtype)
    return model


@pytest.mark.parametrize(
    ("dtype", "factor", "limit"), [("float64", 6, LIMIT), ("float32", 6, 1e-5)]
)
def test_a_steep_network(dtype: str, factor: float, limit: float, tmp_path: Path) -> None:
    """A steep network gets a table of many intervals."""
    compare(steep(factor, dtype=dtype, table=True).write(tmp_path), system(6, 60), limit)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_network_that_is_too_steep(dtype: str, tmp_path: Path) -> None:
    """A network that is too steep for a table is evaluated on CPUs and refused on GPUs."""
    path, s = steep(STEEP, dtype=dtype, table=True).write(tmp_path), system(6, 60)
    with pytest.raises(_core.EngineError, match=r"conv.*varies too fast .* use device cpu"):
        evaluate(_core.Model(path, device="cuda"), s)
    found = evaluate(_core.Model(path, kernels="generic"), s)
    exact = steep(STEEP, dtype=dtype).write(tmp_path)
    want = evaluate(_core.Model(exact, kernels="generic"), s)
    limit = (1e-12 if dtype == "float64" else 1e-5) * np.abs(want["forces"]).max()
    assert np.abs(found["forces"] - want["forces"]).max() < limit


def test_a_network_with_kinks(tmp_path: Path) -> None:
    """A network with kinks, which no table can represent, is evaluated directly."""
    model = two_layers(table=True)
    for layer in model.package.manifest["layers"]:
        if "radial" in layer:
            layer["radial"]["layers"][0]["activation"] = "abs"
    path, s = model.write(tmp_path), system(6, 60)
    want = evaluate(_core.Model(path, kernels="generic"), s)
    cuda = _core.Model(path, device="cuda")
    found = evaluate(cuda, s)
    assert np.abs(found["forces"] - want["forces"]).max() < LIMIT * np.abs(want["forces"]).max()
    assert any("radial_forward" in text for text in kernels(cuda))


@pytest.mark.parametrize(
    ("dtype", "limit", "wave"),
    [("float64", LIMIT, 0.5), ("float64", LIMIT, 3.0), ("float32", 1e-5, 0.5)],
)
@pytest.mark.parametrize("make", [two_layers, type_model])
def test_pairs_of_types_of_later_lists(
    tmp_path: Path, make: Any, dtype: str, limit: float, wave: float
) -> None:
    """Tables grow for new pairs of types, and results do not depend on earlier evaluations."""
    model = make(by_pair=True, dtype=dtype, table=True)
    tensors = model.package.tensors
    for layer in model.package.manifest["layers"]:
        if "radial" in layer:
            layer["radial"]["basis"]["argument"] = "length"
            tensors[layer["radial"]["basis"]["weights"]] *= wave
            tensors[layer["radial"]["r_max"]][...] = [[1.2, 3.0], [3.0, 3.0]]
    path = model.write(tmp_path)
    cpu, cuda = open_both(path)
    s = system(8, 80, seed=4)
    of_one_type = []
    for types in (0 * s.types, s.types, 0 * s.types):
        each = System(s.positions, types.astype(np.int32), *s.edges)
        want, found = evaluate(cpu, each), evaluate(cuda, each)
        scale = np.abs(want["forces"]).max()
        assert np.abs(found["forces"] - want["forces"]).max() < limit * scale
        if not types.any():
            of_one_type.append(found)
    assert not any("radial_forward" in text for text in kernels(cuda))
    for name, value in of_one_type[0].items():
        np.testing.assert_array_equal(of_one_type[1][name], value)
