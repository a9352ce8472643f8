"""Generated CUDA kernels of packages as the engine reads and runs them.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package import Package
from mdcg.package.linear_map import LinearMap
from mdcg.problem import ConvProblem

from ..core.contraction_helpers import random_contraction
from ..internals.internals import ranges_of
from .programs import Program, graph, run

LIMIT = {"float64": 1e-11, "float32": 1e-5}


def program(dtype: str = "float64") -> Program:
    """Return convolutions of types and of features, and contractions with and without types."""
    p = Program(dtype=dtype)
    x = p.features(3, 1)
    problem = random_contraction("3x0e+3x1o", "3x0e+3x1o", 3)
    count = problem.num_coefficients
    x = p.contraction(x, problem, p.random(3, count, 3), "of_types")
    z = p.contraction(x, problem, p.random(1, count, 3), "of_all")
    values = [x, z]  # gradients of x come from all layers
    # kernels that write to the same block, and kernels that run beside each other
    for name, last in ("together", 1), ("apart", 3):
        paths = [(0, 0, 0), (0, 1, 1), (1, 1, 2), (1, 0, last)]
        out = "3x0e+3x1o+3x0e+3x1o" if last == 3 else "3x0e+3x1o+3x0e"
        conv = ConvProblem.build("3x0e+3x1o", "1x0e+1x1o", out, paths)
        values.append(p.conv(x, conv, p.network(conv.weight_numel), name))
    for number, value in enumerate(values):
        p.readout(value, f"readout_{number}")
    return p


def package(dtype: str = "float64") -> Package:
    return program(dtype).package()


def compare(path: Path, g: dict[str, Any], dtype: str) -> list[dict[str, Any]]:
    """Evaluate layer by layer, captured and replayed; check that all three are equal."""
    want = run(_core.Model(str(path), kernels="generic"), g, virial=True)
    cuda = _core.Model(str(path), device="cuda")
    got = [run(cuda, g, virial=True) for _ in range(3)]
    for name, value in want.items():
        scale = max(1e-3, float(np.abs(value).max()))
        for found in got:
            error = float(np.abs(np.asarray(found[name]) - value).max()) / scale
            assert error < LIMIT[dtype], f"{name}: relative error {error:.1e}"
            assert np.array_equal(found[name], got[0][name])
    return got


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_range(tmp_path: Path, dtype: str) -> None:
    package(dtype).save(tmp_path / "p.mdcg")
    compare(tmp_path / "p.mdcg", graph(15, box=4.0), dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("edges", [9, 60])
def test_several_ranges(tmp_path: Path, dtype: str, edges: int) -> None:
    """Lists divided into ranges agree, also if some ranges have a single receiver."""
    package(dtype).save(tmp_path / "p.mdcg")
    with ranges_of(edges):
        compare(tmp_path / "p.mdcg", graph(15, box=4.0), dtype)


def test_layers_without_generated_kernels(tmp_path: Path) -> None:
    program = Program()
    x = program.table("3x0e", program.random(3, 3))
    program.readout(program.linear(x, LinearMap(x.irreps, x.irreps, {(0, 0): np.eye(3)}), "same"))
    program.package().save(tmp_path / "p.mdcg")
    compare(tmp_path / "p.mdcg", graph(5), "float64")
