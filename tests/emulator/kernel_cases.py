"""Generated CUDA kernels on the emulated device, against the definition in float64.

For a process with the emulator: tensors of the host serve as those of its device.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdcg.ops import cuda
from mdcg.ops import graph as edge_orders
from mdcg.ops.contraction_kernels import CudaContraction
from mdcg.ops.reference import (
    conv_reference,
    symmetric_contraction_reference,
    tensor_product_reference,
)
from mdcg.plan import CudaDevice, CudaPlan, CudaTile, CudaUvwTile, plan_cuda
from mdcg.plan.contraction import CudaContractionPlan
from mdcg.problem import ConvProblem

from ..core import contraction_helpers as contractions
from ..core.helpers import (
    ALL,
    assert_close,
    generator,
    mixed_problem,
    random_graph,
    random_operands,
    uninitialized_memory_is_nan,
)

RTOL = {"float32": 3e-6, "float64": 1e-13}


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give launchers a stream if torch has none."""
    monkeypatch.setattr("mdcg.ops.kernels.current_stream", lambda index: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(edge_orders._Ordered, "__init__", lambda self, *tensors: None)
    monkeypatch.setattr(edge_orders._Ordered, "wait", lambda self: None)


def channelwise(layout: str, dtype: str) -> ConvProblem:
    paths = [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 2)]
    return ConvProblem.build(
        "5x0e+5x1o", "0e+1o", "5x0e+5x1o+5x1e", paths, layout=layout, dtype=dtype
    )


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
# operands of two edges do not fit into the rings of a block
MANY_CHANNELS = ConvProblem.build(
    "4x0e+1024x1o",
    "0e+1o",
    "1024x1o+4x1o+1024x1e",
    [(1, 0, 0), (0, 1, 1), (1, 1, 2), (1, 0, 0)],
)
DEFAULT, SMALL, WIDE = CudaUvwTile(), CudaUvwTile(2, 8, 400), CudaUvwTile(8, 64, 40_000)
SEVERAL = CudaTile(channels=2, components=6, warps=2)
CASES = {
    "mul_ir, float64": (channelwise("mul_ir", "float64"), DEFAULT),
    "several kernels": (channelwise("ir_mul", "float32"), SEVERAL),
    "ir_mul, float64": (channelwise("ir_mul", "float64"), DEFAULT),
    "mul_ir, float32": (channelwise("mul_ir", "float32"), DEFAULT),
    "ir_mul, float32": (channelwise("ir_mul", "float32"), DEFAULT),
    "mixed": (mixed_problem(), DEFAULT),
    "shared weights": (mixed_problem(shared_weights=True, dtype="float64"), WIDE),
    "several turns": (mixed_problem(layout="ir_mul", dtype="float64"), SMALL),
    "copies": (COPIES, DEFAULT),
    "long rows": (LONG_ROWS, DEFAULT),
    "many channels": (MANY_CHANNELS, DEFAULT),
}


@pytest.mark.parametrize(
    ("name", "conv", "deterministic"),
    [
        ("mul_ir, float64", True, False),
        ("ir_mul, float64", True, False),
        ("mul_ir, float32", True, False),
        ("ir_mul, float32", True, True),
        ("several kernels", True, False),
        ("several kernels", True, True),
        ("mixed", True, False),
        ("mixed", True, True),
        ("mixed", False, False),
        ("shared weights", True, True),
        ("shared weights", False, False),
        ("several turns", True, False),
        ("copies", False, True),
        ("long rows", True, True),
        ("many channels", True, False),
    ],
)
def test_convolution(name: str, conv: bool, deterministic: bool) -> None:
    problem, tile = CASES[name]
    plan = plan_cuda(problem, CudaDevice(90))
    if isinstance(tile, CudaUvwTile):
        plan = plan.with_changes(uvw=tile, deterministic=deterministic)
    else:
        plan = CudaPlan(90, tile, tile, tile).with_changes(deterministic=deterministic)
    kernels = cuda.CudaKernels(problem, 0, plan)
    graph = random_graph(4, 5, 9, seed=2)  # duplicates, isolated nodes
    rows = graph.n_senders if conv else graph.n_edges
    x, y, w = random_operands(problem, rows, graph.n_edges)
    sides: dict[str, Any] = {"sender": graph.sender, "receiver": graph.receiver}
    edges = edge_orders.CudaGraph(**sides, num_senders=4, num_receivers=5) if conv else None
    inputs = [t.double().requires_grad_() for t in (x, y, w)]  # type: ignore[union-attr]
    if conv:
        value = conv_reference(problem, *inputs, **sides, num_receivers=5)
    else:
        value = tensor_product_reference(problem, *inputs)
    operands = dict(zip(ALL, (x, y, w), strict=False))

    def check(got: torch.Tensor, want: torch.Tensor, what: str) -> None:
        assert_close(got, want.detach().to(got.dtype), RTOL[problem.dtype], f"{name}, {what}")

    gen = generator(3)
    g = torch.randn(value.shape, generator=gen, dtype=torch.float64).to(x.dtype)
    cotangents = {
        n: torch.randn(t.shape, generator=gen, dtype=torch.float64).to(t.dtype)
        for n, t in operands.items()
    }
    inputs.append(g.double().requires_grad_())
    first = torch.autograd.grad(value, inputs[:3], inputs[3], create_graph=True)
    total = torch.stack(
        [(d * c.double()).sum() for d, c in zip(first, cotangents.values(), strict=True)]
    ).sum()
    second = torch.autograd.grad(total, inputs)
    with uninitialized_memory_is_nan():
        check(kernels.run("forward", operands, {}, edges, ())["out"], value, "value")
        operands["g"] = g
        gradients = kernels.run("backward", operands, {}, edges, ALL[:3])
        more = kernels.run("double_backward", operands, cotangents, edges, ALL)
        if deterministic:  # blocks and threads run in another order
            for kind, given, found in (
                ("backward", {}, gradients),
                ("double_backward", cotangents, more),
            ):
                again = kernels.run(kind, operands, given, edges, tuple(found))
                assert all(torch.equal(again[n], value) for n, value in found.items()), kind
    for n, want in zip(ALL, first, strict=False):
        check(gradients[n], want, f"gradient of {n}")
    for n, want in zip(ALL, second, strict=True):
        check(more[n], want, f"second derivative, {n}")


@pytest.mark.parametrize(
    ("into", "out", "dtype", "per_node"),
    [
        ("33x0e+33x1o", "33x0e+33x1o", "float32", False),
        ("7x0e+7x2e", "7x2e", "float64", False),
        ("64x0e+64x1o+64x2e+64x3o", "64x1o", "float64", False),
        ("5x0e+5x1o", "5x0e", "float64", True),
    ],
)
def test_contraction(into: str, out: str, dtype: str, per_node: bool) -> None:
    problem = contractions.random_contraction(into, out, 4, dtype=dtype, per_block=7)
    x, k, y = contractions.random_operands(problem, 6, 40)
    y[4] = 0
    y[4, [0, 33]] = 1  # two species that one lane sees
    if per_node:
        k, attributes = torch.einsum("ns,src->nrc", y, k), None
        species = torch.eye(6, dtype=torch.float64)
    else:
        attributes, species = y, y.double()
    gen = generator(3)
    g, a, b = (
        torch.randn(shape, generator=gen, dtype=torch.float64).to(x.dtype)
        for shape in ((6, problem.channels * problem.dim_out), x.shape, k.shape)
    )
    exact = [t.double().requires_grad_() for t in (x, k, g)]
    rows = torch.einsum("ns,src->nrc", species, exact[1])
    value = symmetric_contraction_reference(problem, exact[0], rows)
    first = torch.autograd.grad(value, exact[:2], exact[2], create_graph=True)
    second = torch.autograd.grad((first[0] * a).sum() + (first[1] * b).sum(), exact)
    kernels = CudaContraction(problem, 0, CudaContractionPlan(90, threads=64))
    operands = {"x": x, "w": k}

    def check(kind: str, cotangents: dict[str, torch.Tensor], **wanted: torch.Tensor) -> None:
        wants = tuple(n for n in wanted if n != "out")
        with uninitialized_memory_is_nan():
            found = kernels.run(kind, operands, attributes, cotangents, wants)
        for n, want in wanted.items():
            limit = 1e-12 if dtype == "float64" else 2e-5
            assert_close(found[n], want.detach().to(x.dtype), limit, f"{kind}, {n}")

    check("forward", {}, out=value)
    operands["g"] = g
    check("backward", {}, x=first[0], w=first[1])
    check("double_backward", {"x": a, "w": b}, x=second[0], w=second[1], g=second[2])
