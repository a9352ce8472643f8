"""Generated kernels of the engine: plans, instruction sets and the interface to the engine.

test_conv_layer.py and test_node_layers.py compare their numbers with the reference.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mdcg import _core
from mdcg.codegen import emit_engine_contraction
from mdcg.codegen.conv.engine import emit_engine_conv
from mdcg.codegen.conv.engine_paths import LIVE_VECTORS
from mdcg.package.kernel_file import compile_kernels
from mdcg.plan import EnginePlan
from mdcg.problem import ConvProblem
from mdcg.runtime.compiler import load_host_kernel

from ..core.contraction_helpers import random_contraction
from . import test_program
from .problems import build
from .programs import graph, run
from .symmetry import close
from .test_conv_layer import Model, many_blocks, system, two_layers

pytestmark = pytest.mark.compiler

PROBLEM = build("5x0e", "1x0e+1x1o", "5x0e+5x1o")


def wide(**options: Any) -> Model:
    """Return a model with enough channels for chunks of four panels in either precision."""
    model = Model(**options)
    x = model.linear(model.conv(None, "8x0e", 1, "8x0e+8x1o"), "64x0e+64x1o")
    model.energy(model.conv(x, "64x0e+64x1o", 2, "64x0e+64x0e"))
    return model


def evaluate(path: str, kernels: str, blocks: int) -> dict[str, Any]:
    s = system(30, 96 * blocks + 60)
    found: dict[str, Any] = _core.Model(path, kernels=kernels).evaluate(
        s.positions, s.types, edges=s.edges, virial=True
    )
    return found


@pytest.mark.parametrize(
    ("make", "table", "plan", "vectors"),
    [
        # with few live vectors, an edge needs up to four loops over its channels
        (two_layers, False, EnginePlan(48, 1), 6),
        (two_layers, True, EnginePlan(48, 1), 6),
        (many_blocks, False, EnginePlan(144, 4), LIVE_VECTORS),
        (wide, True, EnginePlan(), LIVE_VECTORS),
        (partial(wide, dtype="float32"), True, EnginePlan(), LIVE_VECTORS),
    ],
)
def test_plans(
    make: Any,
    table: bool,
    plan: EnginePlan,
    vectors: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = make(table=table).write(tmp_path)
    limit = 1e-12 if _core.Model(path, kernels="generic").dtype == "float64" else 1e-5
    monkeypatch.setattr("mdcg.codegen.conv.engine.EnginePlan", lambda: plan)
    monkeypatch.setattr("mdcg.codegen.conv.engine_paths.LIVE_VECTORS", vectors)
    file = tmp_path / "k.mdcg-kernels"
    file.write_bytes(compile_kernels(Path(path), ["native"]))
    assert f"#define MDCG_EDGES {plan.edges}\n" in emit_engine_conv(PROBLEM)
    close(evaluate(path, str(file), 3), evaluate(path, "generic", 3), limit, "plan")


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_instruction_sets(level: str, tmp_path: Path) -> None:
    if not _core.instruction_set_level().startswith("x86-64"):
        pytest.skip("levels are of x86-64")
    path, file = tmp_path / "p.mdcg", tmp_path / "k.mdcg-kernels"
    test_program.two_layers().package().save(path)
    file.write_bytes(compile_kernels(path, [level]))
    g = graph()
    want, found = (
        run(_core.Model(str(path), kernels=kernels), g, virial=True)
        for kernels in ("generic", str(file))
    )
    close(found, want, 1e-12, level)


@pytest.mark.parametrize(
    "paths",
    [[(0, 0, 0, "uvw")], [(0, 0, 0, "uvu", False)]],
)
def test_errors(paths: list[Any]) -> None:
    problem = ConvProblem.build("4x0e", "1x0e", "4x0e", paths)
    with pytest.raises(ValueError, match="weighted 'uvu' paths only"):
        emit_engine_conv(problem)


def test_plan_errors() -> None:
    with pytest.raises(ValueError, match="a multiple of 16"):
        EnginePlan(edges=50)


def test_description_of_contractions() -> None:
    problem = random_contraction("5x0e+5x1o", "5x1o", 2)
    text = emit_engine_contraction(problem)
    assert text == emit_engine_contraction(problem)
    library = load_host_kernel(text, target="x86-64", flags=())
    info = (ctypes.c_int64 * 6).from_address(library.symbol("mdcg_contraction_info"))
    align = 64 // (4 if problem.dtype == "float32" else 8)
    n = problem.num_coefficients
    assert list(info) == [1, 64 // align, 4 * align, 3 * align, n * align, n]
