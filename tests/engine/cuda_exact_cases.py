"""Exact radial networks on a CUDA device as polynomials, against the processor's networks.

No file of tests by its name: test_cuda_cases.py runs it, on a device that is emulated or real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package

from .cuda_cases import water
from .cuda_models import evaluate
from .cuda_table_cases import compare, saved
from .test_conv_layer import System, system, two_layers

DATA = Path(__file__).parents[1] / "data"
LIMIT = 1e-11


def kernels(model: Any) -> set[str]:
    return {kernel["name"] for kernel in json.loads(model.report())["kernels"]}


@pytest.mark.parametrize("name", ["mace_water", "nequip_water"])
def test_converted_packages(tmp_path: Path, name: str) -> None:
    path = tmp_path / "p.mdcg"
    Package.open(DATA / f"{name}_float64.mdcg").save(path)
    saved(str(path))
    cpu, cuda = _core.Model(str(path), kernels="generic"), _core.Model(str(path), device="cuda")
    positions, types, cell = water()
    wanted = {"cell": cell, "periodic": (True, True, True), "virial": True}
    want = cpu.evaluate(positions, types, **wanted)
    found = cuda.evaluate(positions, types, **wanted)
    for key, value in want.items():
        error = np.abs(np.asarray(found[key]) - value).max() / np.abs(value).max()
        print(f"{name} {key}: relative error {error:.1e}")
        assert error < LIMIT
    names = kernels(cuda)
    assert any("conv_table_forward_0" in text for text in names)
    assert not any("radial_forward" in text for text in names)


@pytest.mark.parametrize("options", [{"by_pair": True}, {"flip": True}])
def test_networks(tmp_path: Path, options: dict[str, Any]) -> None:
    compare(two_layers(**options).write(tmp_path), system(9, 120), LIMIT)


def test_a_network_that_is_too_steep(tmp_path: Path) -> None:
    """No table is exact enough: weights of edges come from the network."""
    model = two_layers()
    for name, tensor in model.package.tensors.items():
        if tensor.ndim == 2 and tensor.shape[0] == 8 and tensor.dtype == np.float64:
            model.package.tensors[name] = 400 * tensor
    path = model.write(tmp_path)
    compare(path, system(6, 60), LIMIT)
    cuda = _core.Model(path, device="cuda")
    evaluate(cuda, system(6, 60))
    names = kernels(cuda)
    assert any("radial_forward" in text for text in names)


def test_pairs_of_types_of_later_lists(tmp_path: Path) -> None:
    path = saved(two_layers(by_pair=True).write(tmp_path))
    cuda, cpu = _core.Model(path, device="cuda"), _core.Model(path, kernels="generic")
    s = system(8, 80, seed=4)
    for types in (0 * s.types, s.types, 0 * s.types):
        each = System(s.positions, types.astype(np.int32), *s.edges)
        want, found = evaluate(cpu, each), evaluate(cuda, each)
        scale = np.abs(want["forces"]).max()
        assert np.abs(found["forces"] - want["forces"]).max() < LIMIT * scale


def test_short_edges(tmp_path: Path) -> None:
    """The step is done again with the network itself."""
    path = saved(two_layers().write(tmp_path))
    s = system(6, 40, seed=5)
    s.shifts[7] = 0.1 * np.array([1.0, 1.0, -1.0]) - (
        s.positions[s.receiver[7]] - s.positions[s.sender[7]]
    )
    compare(path, s, LIMIT)
