"""CUDA kernels of paths with weight matrices, run on the host, against the definition in float64.

Threads of the emulated blocks run in random order between barriers, so a missing one is found too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.plan import CudaDevice, CudaUvwTile, plan_cuda
from mdcg.problem import ConvProblem

from .cuda_emulator import EmulatedKernels, host_graph, no_stream  # noqa: F401  (a fixture)
from .helpers import ALL, assert_close, generator, mixed_problem, random_graph, random_operands

pytestmark = pytest.mark.usefixtures("no_stream")

RTOL = {"float32": 3e-6, "float64": 1e-13}
COPIES = ConvProblem.build(
    "36x0e+2x1o",
    "5x0e+3x1o",
    "7x0e+36x0e+4x1o",
    [(0, 0, 0, "uvw"), (0, 0, 1, "uvu"), (1, 1, 0, "uvw"), (0, 1, 2, "uvw", True, 0.0)],
    layout="ir_mul",
)
LONG_ROWS = ConvProblem.build(
    "2100x0e+3x1o",
    "1x0e+1x1o",
    "3x0e+700x1o",
    [(0, 0, 0, "uvw"), (1, 1, 0, "uvw"), (1, 0, 1, "uvw")],
)
DEFAULT, SMALL, WIDE = CudaUvwTile(), CudaUvwTile(2, 8, 400), CudaUvwTile(8, 64, 40_000)
CASES = {
    "mixed": (mixed_problem(), DEFAULT),
    "shared weights": (mixed_problem(shared_weights=True, dtype="float64"), WIDE),
    "several turns": (mixed_problem(layout="ir_mul", dtype="float64"), SMALL),
    "copies": (COPIES, DEFAULT),
    "long rows": (LONG_ROWS, DEFAULT),
}


@pytest.mark.parametrize(
    ("name", "conv", "deterministic"),
    [
        ("mixed", True, False),
        ("mixed", True, True),
        ("mixed", False, False),
        ("shared weights", True, True),
        ("shared weights", False, False),
        ("several turns", True, False),
        ("copies", False, True),
        ("long rows", True, True),
    ],
)
def test_value_and_derivatives(name: str, conv: bool, deterministic: bool, tmp_path: Path) -> None:
    problem, tile = CASES[name]
    plan = plan_cuda(problem, CudaDevice(90))
    plan = plan.with_changes(uvw=tile, deterministic=deterministic)
    kernels = EmulatedKernels(tmp_path, problem, plan)
    graph = random_graph(4, 5, 9, seed=2)  # duplicates, isolated nodes
    rows = graph.n_senders if conv else graph.n_edges
    x, y, w = random_operands(problem, rows, graph.n_edges)
    sides: dict[str, Any] = {"sender": graph.sender, "receiver": graph.receiver}
    edges = host_graph(**sides, num_receivers=5) if conv else None
    inputs = [t.double().requires_grad_() for t in (x, y, w)]  # type: ignore[union-attr]
    if conv:
        value = conv_reference(problem, *inputs, **sides, num_receivers=5)
    else:
        value = tensor_product_reference(problem, *inputs)
    operands = dict(zip(ALL, (x, y, w), strict=False))
    rtol = RTOL[problem.dtype]

    def check(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
        assert_close(got, want.detach().to(got.dtype), rtol, f"{name}, {what}")

    check(kernels.forward(operands, edges), value, "value")
    gen = generator(3)
    g = torch.randn(value.shape, generator=gen, dtype=torch.float64).to(x.dtype)
    cotangents = {
        n: torch.randn(t.shape, generator=gen, dtype=torch.float64).to(t.dtype)
        for n, t in operands.items()
    }
    operands["g"] = g
    inputs.append(g.double().requires_grad_())
    first = torch.autograd.grad(value, inputs[:3], inputs[3], create_graph=True)
    got = kernels.backward(operands, edges, ALL[:3])
    for n, want in zip(ALL, first, strict=False):
        check(got[n], want, f"gradient of {n}")
    total = torch.stack(
        [(d * c.double()).sum() for d, c in zip(first, cotangents.values(), strict=True)]
    ).sum()
    second = torch.autograd.grad(total, inputs)
    got = kernels.double_backward(operands, cotangents, edges, ALL)
    for n, want in zip(ALL, second, strict=True):
        check(got[n], want, f"second derivative, {n}")
