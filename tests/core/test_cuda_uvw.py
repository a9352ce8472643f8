"""CUDA kernels of paths with weight matrices against the definition in float64; needs a GPU."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from mdcg.bench.cases import CASES
from mdcg.codegen import KernelSpec
from mdcg.ops import conv, tensor_product
from mdcg.ops.cuda import cuda_kernels
from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.plan import CudaDevice, CudaPlan, CudaUvwTile, plan_cuda
from mdcg.problem import ConvProblem, Irrep, Irreps, Path

from .helpers import mixed_problem
from .test_cuda_operators import EDGES, NODES, RECEIVERS, compare, edges

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

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


def random_problem(seed: int) -> ConvProblem:
    """Return one to three blocks of each input and three to six paths, two thirds of them uvw."""
    rng = random.Random(seed)

    def blocks(multiplicities: tuple[int, ...]) -> list[tuple[int, Irrep]]:
        return [
            (rng.choice(multiplicities), Irrep(rng.randint(0, 2), rng.choice((1, -1))))
            for _ in range(rng.randint(1, 3))
        ]

    in1, in2 = blocks((1, 7, 10, 33, 48)), blocks((1, 1, 2, 3))
    out: list[tuple[int, Irrep]] = []
    paths = []
    for number in range(rng.randint(3, 6)):
        i, j = rng.randrange(len(in1)), rng.randrange(len(in2))
        mode = "uvu" if number % 3 == 2 else "uvw"
        (mul1, a), (_, b) = in1[i], in2[j]
        ir = Irrep(rng.randint(abs(a.l - b.l), a.l + b.l), a.p * b.p)
        mul = mul1 if mode == "uvu" else rng.choice((1, 7, 12, 33, 64))
        fits = [k for k, (m, r) in enumerate(out) if r == ir and (mode == "uvw" or m == mul)]
        if not fits:
            fits = [len(out)]
            out.append((mul, ir))
        has_weight = mode == "uvw" or rng.random() < 0.5
        paths.append(Path(i, j, fits[0], mode, has_weight, rng.choice((1.0, -0.6, 1.7320508))))
    return ConvProblem(
        *(Irreps.from_pairs((mul, ir.l, ir.p) for mul, ir in side) for side in (in1, in2, out)),
        tuple(paths),
        layout=rng.choice(("mul_ir", "ir_mul")),
        dtype=rng.choice(("float32", "float64")),
        shared_weights=rng.random() < 0.4,
    )


def _here() -> CudaDevice:
    major, minor = torch.cuda.get_device_capability()
    return CudaDevice(10 * major + minor)


def check_conv(problem: ConvProblem, plan: CudaPlan | None = None) -> None:
    sender, receiver = edges()
    sides = {"sender": sender, "receiver": receiver, "num_receivers": RECEIVERS}
    compare(
        problem,
        NODES,
        lambda *t: conv(problem, *t, **sides, plan=plan),  # type: ignore[arg-type]
        lambda *t: conv_reference(problem, *t, **sides),  # type: ignore[arg-type]
    )


def check_rows(problem: ConvProblem) -> None:
    compare(
        problem,
        EDGES,
        lambda *t: tensor_product(problem, *t),
        lambda *t: tensor_product_reference(problem, *t),
    )


@pytest.mark.parametrize("seed", range(24))
def test_random_problems(seed: int) -> None:
    problem = random_problem(seed)
    check_conv(problem) if seed % 2 else check_rows(problem)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
def test_mixed_modes(shared: bool, dtype: str, layout: str) -> None:
    problem = mixed_problem(shared_weights=shared, dtype=dtype, layout=layout)
    check_conv(problem)
    check_rows(problem)


@pytest.mark.parametrize("irreps", [MANY_COPIES, LONG_ROWS], ids=["copies", "long rows"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_copies_and_long_rows(irreps: tuple[object, ...], dtype: str) -> None:
    check_conv(ConvProblem.build(*irreps, dtype=dtype))  # type: ignore[arg-type]
    check_rows(ConvProblem.build(*irreps, dtype=dtype, layout="ir_mul"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tile",
    [CudaUvwTile(1, 4, 400), CudaUvwTile(8, 64, 40_000), CudaUvwTile(16, 16, 2000, registers=128)],
    ids=str,
)
def test_plans_by_hand(tile: CudaUvwTile) -> None:
    problem = CASES["diffdock-l2"].problem()
    check_conv(problem, plan_cuda(problem, _here()).with_changes(uvw=tile))


@pytest.mark.parametrize("rows", [True, False], ids=["conv", "rows"])
def test_every_choice_of_gradients(rows: bool) -> None:
    """Each kernel gives what the kernel of everything gives."""
    problem = mixed_problem()
    kernels = cuda_kernels(problem.to_json(), "", torch.cuda.current_device())
    choices = [("x",), ("y",), ("w",), ("x", "y"), ("x", "w"), ("y", "w"), ("x", "y", "w")]
    doubles = [
        (given, wants)
        for given in choices
        for wants in (*choices, ("g",), ("w", "g"))
        if all(any(other != name for other in given) for name in wants)
    ]
    specs = [KernelSpec("backward", rows, wants) for wants in choices]
    specs += [KernelSpec("double_backward", rows, wants, given) for given, wants in doubles]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(kernels.load, specs))
    generator = torch.Generator("cuda").manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    x = draw(NODES if rows else EDGES, problem.irreps_in1.dim)
    y, w = draw(EDGES, problem.irreps_in2.dim), draw(EDGES, problem.weight_numel)
    g = draw(RECEIVERS if rows else EDGES, problem.irreps_out.dim)
    operands = {"x": x, "y": y, "w": w, "g": g}
    cotangents = {"x": draw(*x.shape), "y": draw(*y.shape), "w": draw(*w.shape)}
    graph = None
    if rows:
        from mdcg.ops.cuda import graph_on_device

        graph = graph_on_device(x, *edges(), RECEIVERS)
    whole = kernels.backward(operands, graph, ("x", "y", "w"))
    for wants in choices:
        for name, found in kernels.backward(operands, graph, wants).items():
            torch.testing.assert_close(found, whole[name], rtol=1e-4, atol=1e-4)
    for given, wants in doubles:
        present = {name: cotangents[name] for name in given}
        found = kernels.double_backward(operands, present, graph, wants)
        zeros = {n: present.get(n, torch.zeros_like(t)) for n, t in cotangents.items()}
        names = ("x", "y", "w", "g")
        expected = kernels.double_backward(operands, zeros, graph, names)
        for name in wants:
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-4)


def test_no_edges_and_no_rows() -> None:
    problem = mixed_problem()
    none = torch.zeros(0, dtype=torch.int64, device="cuda")
    x = torch.randn(NODES, problem.irreps_in1.dim, device="cuda", requires_grad=True)
    y = torch.zeros(0, problem.irreps_in2.dim, device="cuda")
    w = torch.zeros(0, problem.weight_numel, device="cuda", requires_grad=True)
    out = conv(problem, x, y, w, none, none, num_receivers=4)
    assert out.shape == (4, problem.irreps_out.dim)
    assert not out.any()
    dx, dw = torch.autograd.grad(out.sum(), (x, w))
    assert not dx.any()
    assert dw.shape == w.shape
    assert tensor_product(problem, x[:0], y, w).shape == (0, problem.irreps_out.dim)


@pytest.mark.parametrize("seed", range(24, 32))
def test_deterministic_plans_are_right(seed: int) -> None:
    problem = random_problem(seed)
    check_conv(problem, plan_cuda(problem, _here()).with_changes(deterministic=True))


@pytest.mark.parametrize("shared", [False, True])
def test_torch_asks_for_determinism(shared: bool) -> None:
    """Equal bits in every run, second derivatives included."""
    problem = mixed_problem(shared_weights=shared)
    generator = torch.Generator("cuda").manual_seed(0)
    count = 20_000

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").requires_grad_()

    sender = torch.randint(0, 300, (count,), generator=generator, device="cuda")
    receiver = torch.randint(0, 200, (count,), generator=generator, device="cuda")
    weights = (problem.weight_numel,) if shared else (count, problem.weight_numel)
    operands = [
        draw(300, problem.irreps_in1.dim),
        draw(count, problem.irreps_in2.dim),
        draw(*weights),
    ]

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
    sender, receiver = edges()
    x = torch.randn(NODES, problem.irreps_in1.dim, device="cuda")
    y = torch.randn(EDGES, problem.irreps_in2.dim, device="cuda")
    w = torch.randn(EDGES, problem.weight_numel, device="cuda")
    first = conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS)
    for _ in range(5):
        again = conv(problem, x, y, w, sender, receiver, num_receivers=RECEIVERS)
        assert torch.equal(first, again)


def test_more_weights_than_32_bits_count() -> None:
    problem = CASES["diffdock-l1"].problem()
    rows = 2**31 // problem.weight_numel + 1000
    if torch.cuda.mem_get_info()[0] < 5 * rows * problem.weight_numel * 4:
        pytest.skip("needs 45 GB of free GPU memory")
    x = torch.randn(rows, problem.irreps_in1.dim, device="cuda")
    y = torch.randn(rows, problem.irreps_in2.dim, device="cuda")
    w = torch.randn(rows, problem.weight_numel, device="cuda", requires_grad=True)
    out = tensor_product(problem, x, y, w)
    g = torch.randn_like(out)
    (dw,) = torch.autograd.grad(out, w, g)
    last = slice(rows - 5, rows)
    few = w.detach()[last].clone().requires_grad_()
    expected = tensor_product(problem, x[last], y[last], few)
    torch.testing.assert_close(out[last], expected)
    torch.testing.assert_close(dw[last], torch.autograd.grad(expected, few, g[last])[0])
