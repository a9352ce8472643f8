"""CUDA kernels and their plans against the definition in float64; needs a GPU."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from benchmark.cases import CASES
from hypothesis import given, settings

from mdcg.codegen import KernelSpec
from mdcg.ops import conv, tensor_product
from mdcg.ops.cuda import cuda_kernels, graph_on_device
from mdcg.plan import CudaDevice, CudaPlan, CudaTile, CudaUvwTile, plan_cuda
from mdcg.problem import ConvProblem

from .helpers import Graph, check_conv, check_tensor_product, generator, mixed_problem
from .test_random import PHASES, problems

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DEVICE = "cuda"
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
# mul2 > 1 beside uvu paths; with the second, rows too long for shared memory
MANY_COPIES = (
    "40x0e+5x1o",
    "33x0e+3x1o",
    "12x0e+40x0e+5x1o",
    [(0, 0, 0, "uvw"), (0, 0, 1, "uvu"), (1, 1, 0, "uvw"), (1, 0, 2, "uvu"), (0, 1, 2, "uvw")],
)
LONG_ROWS = (
    "2100x0e+40x1o",
    "1x0e+1x1o",
    "3x0e+1x1o+700x1o",
    [(0, 0, 0, "uvw"), (1, 1, 0, "uvw"), (0, 1, 2, "uvw"), (1, 0, 1, "uvw")],
)


def small(mul: int = 8, **options: object) -> ConvProblem:
    parts = (part.format(mul) if isinstance(part, str) else part for part in SMALL)
    return ConvProblem.build(*parts, **options)  # type: ignore[arg-type]


def all_problems() -> list[ConvProblem]:
    found = []
    for dtype in ("float32", "float64"):
        for layout in ("mul_ir", "ir_mul"):
            options = {"dtype": dtype, "layout": layout}
            found += [small(mul, **options) for mul in (1, 8, 130)]
            for shared in (False, True):
                found.append(ConvProblem.build(*MIXED, shared_weights=shared, **options))
                found.append(mixed_problem(shared_weights=shared, **options))
    return found


PROBLEMS = pytest.mark.parametrize("problem", all_problems(), ids=lambda p: p.key()[:6])
INDEX = partial(torch.randint, size=(EDGES,), generator=generator(1))
#: Unsorted edges; receiver 0 has none.
GRAPH = Graph(INDEX(0, NODES), INDEX(1, RECEIVERS), NODES, RECEIVERS)


def check(
    problem: ConvProblem,
    plan: CudaPlan | None = None,
    *,
    rows: bool = False,
    index: torch.dtype = torch.int64,
) -> None:
    """Compare a convolution or, with `rows`, a batched product with its definition."""
    options = {"rtol": TOLERANCE[problem.dtype], "plan": plan, "device": DEVICE}
    if rows:
        check_tensor_product(problem, EDGES, **options)  # type: ignore[arg-type]
    else:
        check_conv(problem, GRAPH.to(index), **options)  # type: ignore[arg-type]


def here() -> CudaDevice:
    major, minor = torch.cuda.get_device_capability()
    return CudaDevice(10 * major + minor)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@PROBLEMS
def test_convolution_and_its_derivatives(problem: ConvProblem, index: torch.dtype) -> None:
    check(problem, index=index)


@PROBLEMS
def test_tensor_product_and_its_derivatives(problem: ConvProblem) -> None:
    check(problem, rows=True)


@PROBLEMS
def test_deterministic_plans_are_right(problem: ConvProblem) -> None:
    plan = plan_cuda(problem, here()).with_changes(deterministic=True)
    for rows in (False, True):
        check(problem, plan, rows=rows)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("rows", [False, True])
def test_random_problems(rows: bool, deterministic: bool) -> None:
    @settings(max_examples=8 if deterministic else 12, phases=PHASES)
    @given(problem=problems())
    def run(problem: ConvProblem) -> None:
        plan = plan_cuda(problem, here()).with_changes(deterministic=deterministic)
        check(problem, plan, rows=rows)

    run()


@pytest.mark.parametrize("irreps", [MANY_COPIES, LONG_ROWS], ids=["copies", "long rows"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_copies_and_long_rows(irreps: tuple[object, ...], dtype: str) -> None:
    check(ConvProblem.build(*irreps, dtype=dtype))  # type: ignore[arg-type]
    check(ConvProblem.build(*irreps, dtype=dtype, layout="ir_mul"), rows=True)  # type: ignore[arg-type]


# -- plans -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_problems_of_the_benchmark(name: str) -> None:
    check(CASES[name].problem())


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("warps", [1, 8])
def test_plans_by_hand(channels: int, warps: int) -> None:
    tile = CudaTile(channels, 8, batch=8, warps=warps, registers=128)
    check(small(33), CudaPlan(here().capability, tile, tile, tile))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("mul", [4, 36, 128, 132])
@pytest.mark.parametrize("depth", [2, 4])
def test_rings_in_shared_memory(dtype: str, layout: str, mul: int, depth: int) -> None:
    for channels in (1, 2) if dtype == "float64" else (1, 2, 4):
        tile = CudaTile(channels, 40, batch=8, warps=4, depth=depth)
        plan = CudaPlan(here().capability, tile, tile, tile)
        check(small(mul, dtype=dtype, layout=layout), plan)


@pytest.mark.parametrize(
    "tile",
    [CudaUvwTile(1, 4, 400), CudaUvwTile(8, 64, 40_000), CudaUvwTile(16, 16, 2000, registers=128)],
    ids=str,
)
def test_plans_by_hand_of_weight_matrices(tile: CudaUvwTile) -> None:
    problem = CASES["diffdock-l2"].problem()
    check(problem, plan_cuda(problem, here()).with_changes(uvw=tile))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["uvu", "uvw"])
def test_torch_asks_for_determinism(kind: str, shared: bool) -> None:
    """With torch's deterministic algorithms, repeated runs give equal bits."""
    problem = mixed_problem(shared_weights=shared)
    if kind == "uvu":
        problem = ConvProblem.build(*MIXED, shared_weights=shared)
    torch.manual_seed(0)
    count = 100_000 if kind == "uvu" else 20_000
    sender = torch.randint(0, 300, (count,), device=DEVICE)
    receiver = torch.randint(0, 200, (count,), device=DEVICE)
    weights = (problem.weight_numel,) if shared else (count, problem.weight_numel)
    shapes = [(300, problem.irreps_in1.dim), (count, problem.irreps_in2.dim), weights]
    operands = [draw(*shape).requires_grad_() for shape in shapes]

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


def test_forward_is_the_same_in_every_run() -> None:
    problem = CASES["diffdock-l1"].problem()
    x, y = draw(NODES, problem.irreps_in1.dim), draw(EDGES, problem.irreps_in2.dim)
    w = draw(EDGES, problem.weight_numel)
    sides = (GRAPH.sender.to(DEVICE), GRAPH.receiver.to(DEVICE))
    first = conv(problem, x, y, w, *sides, num_receivers=RECEIVERS)
    for _ in range(5):
        assert torch.equal(first, conv(problem, x, y, w, *sides, num_receivers=RECEIVERS))


# -- what is computed ------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [True, False], ids=["conv", "rows"])
def test_every_choice_of_gradients(rows: bool) -> None:
    """Kernels for a subset of gradients give the values of the kernel for all."""
    problem = mixed_problem()
    kernels = cuda_kernels(problem.to_json(), "", torch.cuda.current_device())
    choices = [("x",), ("y",), ("w",), ("x", "y"), ("x", "w"), ("y", "w"), ("x", "y", "w")]
    doubles = [
        (have, wants)
        for have in choices
        for wants in (*choices, ("g",), ("w", "g"))
        if all(any(other != name for other in have) for name in wants)
    ]
    specs = [KernelSpec("backward", rows, wants) for wants in choices]
    specs += [KernelSpec("double_backward", rows, wants, have) for have, wants in doubles]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(kernels.load, specs))
    x = draw(NODES if rows else EDGES, problem.irreps_in1.dim)
    y, w = draw(EDGES, problem.irreps_in2.dim), draw(EDGES, problem.weight_numel)
    g = draw(RECEIVERS if rows else EDGES, problem.irreps_out.dim)
    operands = {"x": x, "y": y, "w": w, "g": g}
    cotangents = {"x": draw(*x.shape), "y": draw(*y.shape), "w": draw(*w.shape)}
    sides = (GRAPH.sender.to(DEVICE), GRAPH.receiver.to(DEVICE))
    graph = graph_on_device(x, *sides, RECEIVERS) if rows else None
    whole = kernels.run("backward", operands, {}, graph, ("x", "y", "w"))
    for wants in choices:
        for name, found in kernels.run("backward", operands, {}, graph, wants).items():
            torch.testing.assert_close(found, whole[name], rtol=1e-4, atol=1e-4)
    for have, wants in doubles:
        present = {name: cotangents[name] for name in have}
        found = kernels.run("double_backward", operands, present, graph, wants)
        zeros = {n: present.get(n, torch.zeros_like(t)) for n, t in cotangents.items()}
        expected = kernels.run("double_backward", operands, zeros, graph, ("x", "y", "w", "g"))
        for name in wants:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("problem", [small(), mixed_problem()], ids=["small", "mixed"])
def test_no_edges_and_no_rows(problem: ConvProblem) -> None:
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    x = draw(NODES, problem.irreps_in1.dim).requires_grad_()
    y = draw(0, problem.irreps_in2.dim)
    w = draw(0, problem.weight_numel).requires_grad_()
    out = conv(problem, x, y, w, none, none, num_receivers=4)
    assert out.shape == (4, problem.irreps_out.dim)
    assert not out.any()
    dx, dw = torch.autograd.grad(out.sum(), (x, w))
    assert not dx.any()
    assert dw.shape == w.shape
    assert tensor_product(problem, x[:0], y, w).shape == (0, problem.irreps_out.dim)


def test_indices_out_of_range_and_calls_that_do_not_wait() -> None:
    problem = small()
    shapes = ((NODES, problem.irreps_in1.dim), (EDGES, 4), (EDGES, problem.weight_numel))
    operands = [draw(*shape) for shape in shapes]
    sender, receiver = GRAPH.sender.to(DEVICE), GRAPH.receiver.to(DEVICE)
    with pytest.raises(ValueError, match=r"sender has indices from .* expected 0 to 6"):
        conv(problem, *operands, sender + NODES, receiver, num_receivers=RECEIVERS)
    conv(problem, *operands, sender, receiver, num_receivers=RECEIVERS)
    torch.cuda.set_sync_debug_mode("error")
    try:
        conv(problem, *operands, sender, receiver, num_receivers=RECEIVERS)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_more_weights_than_32_bits_count() -> None:
    problem = CASES["diffdock-l1"].problem()
    rows = 2**31 // problem.weight_numel + 1000
    if torch.cuda.mem_get_info()[0] < 5 * rows * problem.weight_numel * 4:
        pytest.skip("needs 45 GB of free GPU memory")
    x, y = draw(rows, problem.irreps_in1.dim), draw(rows, problem.irreps_in2.dim)
    w = draw(rows, problem.weight_numel).requires_grad_()
    out = tensor_product(problem, x, y, w)
    g = torch.randn_like(out)
    (dw,) = torch.autograd.grad(out, w, g)
    last = slice(rows - 5, rows)
    few = w.detach()[last].clone().requires_grad_()
    expected = tensor_product(problem, x[last], y[last], few)
    torch.testing.assert_close(out[last], expected)
    torch.testing.assert_close(dw[last], torch.autograd.grad(expected, few, g[last])[0])
