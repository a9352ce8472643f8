"""Symmetric contractions on a CUDA device against their definition in float64."""

from __future__ import annotations

import pytest
import torch

from mdcg.ops.functional import symmetric_contraction
from mdcg.ops.reference import symmetric_contraction_reference
from mdcg.plan.contraction import CudaContractionPlan

from .contraction_helpers import compare, random_contraction, random_operands

pytestmark = pytest.mark.gpu

CASES = {
    "linear": ("4x0e+4x1o", "4x1o", 1),
    "cubic": ("128x0e+128x1o+128x2e+128x3o", "128x0e+128x1o", 3),
    "odd": ("33x0e+33x1o", "33x0e+33x1o", 3),
    "quartic": ("7x0e+7x1o", "7x0e+7x1o", 4),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str, dtype: str) -> None:
    problem = random_contraction(*CASES[name], dtype=dtype, per_block=6)
    x, k, y = (t.cuda() for t in random_operands(problem, 21, 40))
    compare(
        lambda x, k: symmetric_contraction(problem, x, k, y),
        lambda x, k: symmetric_contraction_reference(problem, x, k, y.double()),
        (x, k),
        rtol=1e-11 if dtype == "float64" else 1e-4,
    )


def test_third_derivatives_and_rows_per_node() -> None:
    problem = random_contraction("3x0e+3x1o", "3x0e+3x1o", 3)
    x, k, y = (t.cuda() for t in random_operands(problem, 6, 6))
    compare(
        lambda x, k, y: symmetric_contraction(problem, x, k, y),
        lambda x, k, y: symmetric_contraction_reference(problem, x, k, y),
        (x, k, y),
        order=3,
        rtol=1e-10,
    )


@pytest.mark.parametrize("threads", [32, 256])
def test_plans_by_hand(threads: int) -> None:
    problem = random_contraction("70x0e+70x1o", "70x0e", 3)
    x, k, y = (t.cuda() for t in random_operands(problem, 9, 3))
    major, minor = torch.cuda.get_device_capability()
    plan = CudaContractionPlan(10 * major + minor, threads)
    compare(
        lambda x, k: symmetric_contraction(problem, x, k, y, plan=plan),
        lambda x, k: symmetric_contraction_reference(problem, x, k, y),
        (x, k),
        order=1,
        rtol=1e-11,
    )


# The step is captured on a separate stream and replayed on the current one.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
def test_nothing_waits_for_the_device_and_graphs_follow_new_species() -> None:
    problem = random_contraction("32x0e+32x1o", "32x0e", 3)
    x, k, y = (t.cuda() for t in random_operands(problem, 9, 3))
    leaves = [x.requires_grad_(), k.requires_grad_()]

    def step() -> list[torch.Tensor]:
        out = symmetric_contraction(problem, x, k, y)
        return [out, *torch.autograd.grad(out.sum(), leaves)]

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        found = step()
    y.copy_(y.roll(1, 0))
    captured.replay()
    for got, want in zip(found, step(), strict=True):
        torch.testing.assert_close(got, want)


def test_no_nodes_and_the_same_result_twice() -> None:
    problem = random_contraction("32x0e+32x1o", "32x0e", 3)
    x, k, y = (t.cuda() for t in random_operands(problem, 50, 3))
    assert symmetric_contraction(problem, x[:0], k, y[:0]).shape == (0, 32)
    found = []
    for _ in range(2):
        leaves = [t.clone().requires_grad_() for t in (x, k)]
        out = symmetric_contraction(problem, *leaves, y)
        found.append([out, *torch.autograd.grad(out.sin().sum(), leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
