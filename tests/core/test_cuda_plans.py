"""Plans of the CUDA kernels: by hand, with rings in shared memory, deterministic; needs a GPU."""

from __future__ import annotations

import pytest
import torch

from mdcg.ops import conv, tensor_product
from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.plan import CudaDevice, CudaPlan, CudaTile, plan_cuda
from mdcg.problem import ConvProblem

from .test_cuda_operators import EDGES, MIXED, NODES, RECEIVERS, SMALL, compare, edges, problems

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]


def capability() -> int:
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def check(problem: ConvProblem, plan: CudaPlan | None) -> None:
    sender, receiver = edges()
    compare(
        problem,
        NODES,
        lambda x, y, w: conv(
            problem, x, y, w, sender, receiver, num_receivers=RECEIVERS, plan=plan
        ),
        lambda x, y, w: conv_reference(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS),
    )


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("warps", [1, 8])
def test_plans_by_hand(channels: int, warps: int) -> None:
    problem = ConvProblem.build("33x0e+33x1o", *SMALL[1:2], "33x0e+33x1o", SMALL[3])
    tile = CudaTile(channels, 8, batch=8, warps=warps, registers=128)
    check(problem, CudaPlan(capability(), tile, tile, tile))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("mul", [4, 36, 128, 132])
@pytest.mark.parametrize("depth", [2, 8])
def test_rings(dtype: str, layout: str, mul: int, depth: int) -> None:
    rows, sh, out, paths = (p.format(mul) if isinstance(p, str) else p for p in SMALL)
    problem = ConvProblem.build(rows, sh, out, paths, dtype=dtype, layout=layout)
    for channels in (1, 2) if dtype == "float64" else (1, 2, 4):
        tile = CudaTile(channels, 40, batch=8, warps=4, depth=depth)
        check(problem, CudaPlan(capability(), tile, tile, tile))


@pytest.mark.parametrize("problem", problems(), ids=lambda p: p.key()[:6])
def test_deterministic_plans_are_right(problem: ConvProblem) -> None:
    plan = plan_cuda(problem, CudaDevice(capability())).with_changes(deterministic=True)
    check(problem, plan)
    compare(
        problem,
        EDGES,
        lambda x, y, w: tensor_product(problem, x, y, w, plan=plan),
        lambda x, y, w: tensor_product_reference(problem, x, y, w),
    )


@pytest.mark.parametrize("shared", [False, True])
def test_torch_asks_for_determinism(shared: bool) -> None:
    """Equal bits in every run, on a graph that is not symmetric, many edges to each node."""
    problem = ConvProblem.build(*MIXED, shared_weights=shared)
    torch.manual_seed(0)
    count = 100_000
    sender = torch.randint(0, 300, (count,), device="cuda")
    receiver = torch.randint(0, 200, (count,), device="cuda")
    weights = (problem.weight_numel,) if shared else (count, problem.weight_numel)
    shapes = [(300, problem.irreps_in1.dim), (count, problem.irreps_in2.dim), weights]
    operands = [torch.randn(*shape, device="cuda", requires_grad=True) for shape in shapes]

    def run() -> list[torch.Tensor]:
        out = conv(problem, *operands, sender, receiver, num_receivers=200)
        first = torch.autograd.grad(out, operands, torch.ones_like(out), create_graph=True)
        total = sum(d.square().sum() for d in first)
        return [out, *first, *torch.autograd.grad(total, operands)]

    torch.use_deterministic_algorithms(True)
    try:
        wanted = run()
        for _ in range(5):
            for got, expected in zip(run(), wanted, strict=True):
                assert torch.equal(got, expected)
    finally:
        torch.use_deterministic_algorithms(False)
