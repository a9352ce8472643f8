"""CUDA kernels against the definition in float64; needs a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mdcg.errors import UnsupportedProblemError
from mdcg.ops import conv, tensor_product
from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.problem import ConvProblem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

Tensor = torch.Tensor
TOLERANCE = {"float32": 3e-6, "float64": 1e-13}
NODES, RECEIVERS, EDGES = 7, 9, 150

SMALL = ("{0}x0e+{0}x1o", "0e+1o", "{0}x0e+{0}x1o", [(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)])
# mul2 > 1, a path without weights, blocks without paths, unequal multiplicities
MIXED = (
    "5x0e+37x1o+2x1e+4x2e",
    "2x0e+1x1o",
    "5x0e+6x1o+37x1o+37x1e",
    [(0, 0, 0, "uvu", True, 1.25), (1, 0, 2, "uvu", False, 0.75), (1, 1, 3, "uvu", True, 0.8)],
)


def problems() -> list[ConvProblem]:
    found = []
    for dtype in ("float32", "float64"):
        for layout in ("mul_ir", "ir_mul"):
            options = {"dtype": dtype, "layout": layout}
            for mul in (1, 8, 130):
                rows, sh, out, paths = (
                    part.format(mul) if isinstance(part, str) else part for part in SMALL
                )
                found.append(ConvProblem.build(rows, sh, out, paths, **options))
            found += [
                ConvProblem.build(*MIXED, shared_weights=shared, **options)
                for shared in (False, True)
            ]
    return found


def gradients(function: Callable[..., Tensor], operands: list[Tensor], draw: Callable[..., Tensor]):  # type: ignore[no-untyped-def]
    """Return the value, its gradients, and the gradients of a sum of those."""
    operands = [t.detach().clone().requires_grad_() for t in operands]
    out = function(*operands)
    g = draw("g", out).requires_grad_()
    first = torch.autograd.grad(out, operands, g, create_graph=True)
    total = sum((d * draw(str(i), d)).sum() for i, d in enumerate(first))
    return [out, *first, *torch.autograd.grad(total, [*operands, g])]


def compare(problem: ConvProblem, rows: int, ours: object, reference: object) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = (problem.weight_numel,) if problem.shared_weights else (EDGES, problem.weight_numel)
    shapes = [(rows, problem.irreps_in1.dim), (EDGES, problem.irreps_in2.dim), weights]
    dtype = getattr(torch, problem.dtype)
    operands = [torch.randn(*shape, generator=generator, dtype=dtype).cuda() for shape in shapes]
    drawn: dict[str, Tensor] = {}

    def draw(name: str, like: Tensor) -> Tensor:
        if name not in drawn:
            drawn[name] = torch.randn(like.shape, generator=generator, dtype=dtype).cuda()
        return drawn[name].to(like.dtype, copy=True)

    got = gradients(ours, operands, draw)  # type: ignore[arg-type]
    expected = gradients(reference, [t.double() for t in operands], draw)  # type: ignore[arg-type]
    for number, (a, b) in enumerate(zip(got, expected, strict=True)):
        error = ((a.double() - b).abs().max() / b.abs().max()).item()
        assert error < TOLERANCE[problem.dtype], (number, error)


def edges(index: torch.dtype = torch.int64) -> tuple[Tensor, Tensor]:
    """Return unsorted edges; receiver 0 has none."""
    generator = torch.Generator().manual_seed(1)
    sender = torch.randint(0, NODES, (EDGES,), generator=generator)
    receiver = torch.randint(1, RECEIVERS, (EDGES,), generator=generator)
    return sender.to("cuda", index), receiver.to("cuda", index)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.key()[:6])
def test_convolution_and_its_derivatives(problem: ConvProblem, index: torch.dtype) -> None:
    sender, receiver = edges(index)
    compare(
        problem,
        NODES,
        lambda x, y, w: conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS),
        lambda x, y, w: conv_reference(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS),
    )


@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.key()[:6])
def test_tensor_product_and_its_derivatives(problem: ConvProblem) -> None:
    compare(
        problem,
        EDGES,
        lambda x, y, w: tensor_product(problem, x, y, w),
        lambda x, y, w: tensor_product_reference(problem, x, y, w),
    )


def _operands(problem: ConvProblem, count: int = EDGES) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(NODES, problem.irreps_in1.dim, device="cuda"),
        torch.randn(count, problem.irreps_in2.dim, device="cuda"),
        torch.randn(count, problem.weight_numel, device="cuda"),
    )


def _small() -> ConvProblem:
    return ConvProblem.build("8x0e+8x1o", "0e+1o", "8x0e+8x1o", SMALL[3])


def test_no_edges() -> None:
    none = torch.zeros(0, dtype=torch.int64, device="cuda")
    out = conv(_small(), *_operands(_small(), 0), none, none, num_receivers=4)
    assert out.shape == (4, 32)
    assert not out.any()


def test_indices_out_of_range_and_other_modes_are_refused() -> None:
    sender, receiver = edges()
    with pytest.raises(ValueError, match=r"sender has indices from .* expected 0 to 6"):
        conv(_small(), *_operands(_small()), sender + NODES, receiver, num_receivers=RECEIVERS)
    uvw = ConvProblem.build("4x0e", "0e", "3x0e", [(0, 0, 0, "uvw")])
    with pytest.raises(UnsupportedProblemError, match="uvu alone"):
        conv(uvw, *_operands(uvw), sender, receiver, num_receivers=RECEIVERS)


def test_a_captured_graph_follows_indices_that_change_in_place() -> None:
    problem = _small()
    x, y, w = _operands(problem)
    sender, receiver = edges()
    conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS)
    sender.copy_(sender.flip(0))
    receiver.copy_(receiver.roll(7))
    captured.replay()
    wanted = conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS)
    torch.testing.assert_close(out, wanted)


def test_second_call_does_not_wait_for_the_device() -> None:
    problem = _small()
    operands = _operands(problem)
    sender, receiver = edges()
    conv(problem, *operands, sender, receiver, num_receivers=RECEIVERS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        conv(problem, *operands, sender, receiver, num_receivers=RECEIVERS)
    finally:
        torch.cuda.set_sync_debug_mode("default")
