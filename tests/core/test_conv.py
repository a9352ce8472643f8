"""The convolution against the reference: every kind of graph, operand and problem."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mdcg.ops import conv, tensor_product
from mdcg.ops.reference import conv_reference
from mdcg.problem import ConvProblem

from .helpers import (
    Graph,
    assert_close,
    check_conv,
    check_tensor_product,
    compile_ahead,
    derivatives,
    generator,
    mixed_problem,
    random_graph,
    random_operands,
    small_problem,
    third_order_specs,
    usual_specs,
)

pytestmark = pytest.mark.compiler

DOUBLE = small_problem(dtype="float64")


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    """Compile what most tests here use."""
    mixed = [mixed_problem(dtype=d, layout=l) for d in ("float32", "float64") for l in LAYOUTS]
    shared = mixed_problem(dtype="float64", shared_weights=True)
    jobs = [(problem, usual_specs(True)) for problem in (DOUBLE, *mixed, shared, *HIGH.values())]
    jobs += [(mixed[2], [*usual_specs(False), *third_order_specs()])]
    compile_ahead(jobs)


LAYOUTS = ("mul_ir", "ir_mul")


def edges(pairs: list[tuple[int, int]], n_senders: int, n_receivers: int) -> Graph:
    """Return a graph of (sender, receiver) pairs."""
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return Graph(index[:, 0].contiguous(), index[:, 1].contiguous(), n_senders, n_receivers)


def line(n: int) -> Graph:
    """Return a sorted chain, every edge both ways."""
    return edges([(i, j) for j in range(n) for i in (j - 1, j + 1) if 0 <= i < n], n, n)


# -- graphs ---------------------------------------------------------------------------------------

GRAPHS = {
    "random": random_graph(20, 20, 90),
    "sorted": line(12),
    "no edges": random_graph(7, 7, 0),
    "no nodes": random_graph(0, 0, 0),
    "receivers without senders": random_graph(0, 6, 0),
    "senders without receivers": random_graph(6, 0, 0),
    "one edge": edges([(2, 1)], 3, 3),
    "isolated nodes": edges([(8, 3), (3, 8), (8, 5)], 10, 10),
    "self loops": edges([(i, i) for i in (3, 1, 1, 0, 3)], 5, 5),
    "duplicate edges": edges([(1, 2)] * 20 + [(2, 1)] * 3, 4, 4),
    "one direction only": edges([(i, j) for i in range(9) for j in range(i)], 9, 9),
    "fewer receivers": random_graph(30, 4, 80),
    "more receivers": random_graph(4, 30, 80),
    "one receiver of many edges": random_graph(25, 1, 700),
    "one sender of many edges": random_graph(1, 25, 700),
    "last nodes only": edges([(499, 399), (498, 399), (499, 0)], 500, 400),
    "many tasks and blocks": random_graph(150, 170, 2500),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str) -> None:
    check_conv(DOUBLE, GRAPHS[name])


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs_with_shared_weights(name: str) -> None:
    check_conv(mixed_problem(dtype="float64", shared_weights=True), GRAPHS[name])


@pytest.mark.parametrize("name", ["no edges", "isolated nodes"])
def test_receivers_without_edges_get_zeros(name: str) -> None:
    graph = GRAPHS[name]
    x, y, w = random_operands(DOUBLE, graph.n_senders, graph.n_edges)
    out = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    alone = torch.ones(graph.n_receivers, dtype=torch.bool)
    alone[graph.receiver] = False
    assert int(alone.sum()) > 0
    assert (out[alone] == 0).all()


def test_number_of_receivers_is_that_of_nodes_by_default() -> None:
    graph = random_graph(9, 4, 20)
    x, y, w = random_operands(DOUBLE, 9, 20)
    out = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    few = conv(DOUBLE, x, y, w, graph.sender, graph.receiver, num_receivers=4)
    assert out.shape == (9, DOUBLE.irreps_out.dim)
    assert (out[:4] == few).all()
    assert (out[4:] == 0).all()


def test_index_types_give_equal_results() -> None:
    graph = random_graph(20, 30, 90)
    x, y, w = random_operands(DOUBLE, 20, 90)
    results = []
    for dtype in (torch.int64, torch.int32):
        g = graph.to(dtype)
        xg = x.clone().requires_grad_()
        out = conv(DOUBLE, xg, y, w, g.sender, g.receiver, num_receivers=30)
        results.append((out, *torch.autograd.grad(out.square().sum(), xg)))
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_index_changed_in_place_is_noticed() -> None:
    graph = random_graph(20, 20, 90)
    x, y, w = random_operands(DOUBLE, 20, 90)
    sender, receiver = graph.sender.clone(), graph.receiver.clone()
    first = conv(DOUBLE, x, y, w, sender, receiver)
    for index in (sender, receiver):
        index[17] = (index[17] + 1) % 20
        changed = conv(DOUBLE, x, y, w, sender, receiver)
        assert not torch.equal(changed, first)
        assert_close(changed, conv_reference(DOUBLE, x, y, w, sender, receiver), 1e-12)


def test_more_graphs_than_are_remembered() -> None:
    graphs = [random_graph(12, 12, 30, seed=seed) for seed in range(20)]
    x, y, w = random_operands(DOUBLE, 12, 30)
    for graph in graphs * 2:
        out = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
        assert_close(out, conv_reference(DOUBLE, x, y, w, graph.sender, graph.receiver), 1e-12)


# -- problems -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_everything_at_once(dtype: str, layout: str) -> None:
    check_conv(mixed_problem(dtype=dtype, layout=layout), random_graph(30, 25, 300))


def test_everything_at_once_third_derivatives() -> None:
    check_conv(mixed_problem(dtype="float64"), random_graph(5, 6, 17), order=3)


def test_everything_at_once_batched() -> None:
    check_tensor_product(mixed_problem(dtype="float64"), 201)


HIGH = {
    degrees: ConvProblem.build(
        f"3x{degrees[0]}e", f"{degrees[1]}o", f"3x{degrees[2]}o", [(0, 0, 0, mode)], dtype="float64"
    )
    for degrees, mode in (((11, 11, 11), "uvu"), ((4, 11, 8), "uvu"), ((7, 5, 6), "uvw"))
}


def test_paths_with_equal_coupling() -> None:
    """Paths that share nonzeros each contribute to the gradient of the harmonics."""
    paths = [(0, 0, 0), (1, 0, 1), (2, 0, 2, "uvw"), (0, 0, 0)]
    irreps = ("5x1o+3x1o+2x1o", "2x1o", "5x1e+3x1e+4x1e")
    problem = ConvProblem.build(*irreps, paths, dtype="float64")
    compile_ahead([(problem, usual_specs())])
    check_conv(problem, random_graph(5, 6, 17))
    check_tensor_product(problem, 9)


@pytest.mark.parametrize("degrees", HIGH, ids=str)
def test_high_degrees(degrees: tuple[int, int, int]) -> None:
    check_conv(HIGH[degrees], random_graph(5, 6, 17))


@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem.build("0x0e+4x1o", "0e", "0x0e+4x1o", [(0, 0, 0), (1, 0, 1)], dtype="float64"),
        ConvProblem.build("4x0e", "0x0e+0e", "4x0e", [(0, 0, 0), (0, 1, 0)], dtype="float64"),
        ConvProblem.build(
            "3x0e", "0e", "0x0e+2x0e", [(0, 0, 0, "uvw"), (0, 0, 1, "uvw")], dtype="float64"
        ),
        ConvProblem.build(
            "2x1o", "0e+1o", "2x0e+2x1e", [(0, 1, 0, "uvu", True, 0.0)], dtype="float64"
        ),
    ],
    ids=["no channels in", "no harmonics", "no channels out", "zero path weight"],
)
def test_empty_parts(problem: ConvProblem) -> None:
    compile_ahead([(problem, usual_specs(True))])
    check_conv(problem, random_graph(4, 5, 12))


def test_no_paths() -> None:
    problem = ConvProblem.build("4x0e", "0e", "4x0e+2x1o", [], dtype="float64")
    graph = random_graph(4, 5, 12)
    x, y, _ = random_operands(problem, 4, 12, grad=True)
    out = conv(problem, x, y, None, graph.sender, graph.receiver, num_receivers=5)
    assert torch.equal(out, torch.zeros(5, 10, dtype=torch.float64))
    for gradient in torch.autograd.grad(out.sum(), [x, y]):
        assert not gradient.any()


# -- operands -------------------------------------------------------------------------------------


def awkward(kind: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of equal shape that is not a plain contiguous one."""
    rows, columns = tensor.shape
    if kind == "transposed":
        return tensor.t().contiguous().t()
    if kind == "columns of a wider tensor":
        wide = torch.zeros(rows, columns + 3, dtype=tensor.dtype)
        wide[:, 2 : columns + 2] = tensor
        return wide[:, 2 : columns + 2]
    if kind == "every other row":
        return tensor.repeat_interleave(2, 0)[::2]
    if kind == "one row for all":
        return tensor[:1].expand(rows, columns)
    if kind == "not at the start of its memory":
        # also breaks the alignment of allocations
        flat = torch.zeros(tensor.numel() + 1, dtype=tensor.dtype)
        flat[1:] = tensor.flatten()
        return flat[1:].view(rows, columns)
    raise AssertionError(kind)


@pytest.mark.parametrize("operand", ["x", "y", "w"])
@pytest.mark.parametrize(
    "kind",
    [
        "transposed",
        "columns of a wider tensor",
        "every other row",
        "one row for all",
        "not at the start of its memory",
    ],
)
def test_memory_layout_of_operands(operand: str, kind: str) -> None:
    graph = random_graph(20, 20, 90)
    plain = dict(zip("xyw", random_operands(DOUBLE, 20, 90), strict=True))
    given = {k: awkward(kind, t) if k == operand else t for k, t in plain.items()}
    want: list[torch.Tensor] = []
    for tensors in ({k: t.contiguous() for k, t in given.items()}, given):
        leaves = {k: t.detach().requires_grad_() for k, t in tensors.items()}
        assert leaves[operand].stride() == tensors[operand].stride()
        out = conv(DOUBLE, *leaves.values(), graph.sender, graph.receiver)
        found = [out, *torch.autograd.grad(out.square().sum(), list(leaves.values()))]
        if not want:
            want = found
        else:
            assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_memory_around_operands_is_not_used(dtype: str) -> None:
    """Memory before and after operands does not affect results if channels fill no whole vector."""
    problem = mixed_problem(dtype=dtype)
    plain = random_operands(problem, 20, 90)
    graph = random_graph(20, 20, 90)
    found = []
    for around in (0.0, float("nan")):
        leaves = []
        for tensor in plain:
            buffer = torch.full((tensor.numel() + 128,), around, dtype=tensor.dtype)
            buffer[64:-64] = tensor.flatten()
            leaves.append(buffer[64:-64].view(tensor.shape).requires_grad_())
        out = conv(problem, *leaves, graph.sender, graph.receiver)
        found.append(derivatives(out, leaves, order=2))
    for name, want in found[0].items():
        assert torch.equal(found[1][name], want), name


def test_memory_layout_of_indices() -> None:
    graph = random_graph(20, 20, 90)
    x, y, w = random_operands(DOUBLE, 20, 90)
    want = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    pairs = torch.stack([graph.sender, graph.receiver], dim=1)
    assert torch.equal(conv(DOUBLE, x, y, w, *pairs.unbind(1)), want)
    doubled = torch.stack([graph.sender, graph.receiver]).repeat_interleave(2, 1)
    assert torch.equal(conv(DOUBLE, x, y, w, *doubled[:, ::2]), want)


@pytest.mark.parametrize("shape", [(1, 1), (), (20, 1)])
def test_gradients_that_are_expanded(shape: tuple[int, ...]) -> None:
    """Expanded gradients, with strides of 0, give the results of contiguous ones."""
    graph = random_graph(20, 20, 90)
    x, y, w = random_operands(DOUBLE, 20, 90, grad=True)
    out = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    g = torch.randn(shape, generator=generator(3), dtype=torch.float64).expand(out.shape)
    got = torch.autograd.grad(out, [x, y, w], g, retain_graph=True)
    want = torch.autograd.grad(out, [x, y, w], g.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_shared_weights_may_have_a_row_dimension() -> None:
    problem = mixed_problem(dtype="float64", shared_weights=True)
    graph = random_graph(20, 20, 90)
    x, y, w = random_operands(problem, 20, 90, grad=True)
    flat = conv(problem, x, y, w, graph.sender, graph.receiver)
    row = conv(problem, x, y, w[None], graph.sender, graph.receiver)
    assert torch.equal(flat, row)
    (gradient,) = torch.autograd.grad(row.sum(), w)
    assert gradient.shape == w.shape


def test_weights_may_be_left_out_or_empty_where_there_are_none() -> None:
    problem = ConvProblem.build("2x1o", "0e", "2x1o", [(0, 0, 0, "uvu", False)], dtype="float64")
    graph = random_graph(4, 5, 12)
    x, y, _ = random_operands(problem, 4, 12)
    want = conv(problem, x, y, None, graph.sender, graph.receiver, num_receivers=5)
    for w in (x.new_empty(0), x.new_empty(12, 0), x.new_empty(1, 0)):
        out = conv(problem, x, y, w, graph.sender, graph.receiver, num_receivers=5)
        assert torch.equal(out, want)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode: Any) -> None:
    graph = random_graph(20, 20, 90)
    x, y, w = random_operands(DOUBLE, 20, 90, grad=True)
    want = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    with mode():
        out = conv(DOUBLE, x, y, w, graph.sender, graph.receiver)
    assert not out.requires_grad
    assert torch.equal(out, want)


def test_operands_are_not_changed() -> None:
    graph = random_graph(20, 20, 90)
    tensors = random_operands(DOUBLE, 20, 90)
    before = [t.clone() for t in tensors]
    leaves = [t.requires_grad_() for t in tensors]
    out = conv(DOUBLE, *leaves, graph.sender, graph.receiver)
    torch.autograd.grad(out.sum(), leaves)
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy)


# -- batched product ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape1", "shape2", "shape_w"),
    [
        ((), (), ()),
        ((7,), (7,), (7,)),
        ((7,), (), ()),
        ((), (7,), (1,)),
        ((1, 3), (5, 1), ()),
        ((2, 1, 3), (4, 1), (2, 4, 3)),
        ((0,), (0,), (0,)),
        ((3, 0), (1, 1), ()),
    ],
    ids=str,
)
def test_leading_dimensions_broadcast(
    shape1: tuple[int, ...], shape2: tuple[int, ...], shape_w: tuple[int, ...]
) -> None:
    gen = generator(1)

    def draw(shape: tuple[int, ...], columns: int) -> torch.Tensor:
        return torch.randn(*shape, columns, generator=gen, dtype=torch.float64)

    x, y, w = draw(shape1, 32), draw(shape2, 4), draw(shape_w, 32)
    out = tensor_product(DOUBLE, x, y, w)
    batch = torch.broadcast_shapes(shape1, shape2, shape_w)
    assert out.shape == (*batch, DOUBLE.irreps_out.dim)
    full = [t.expand(*batch, t.shape[-1]).reshape(-1, t.shape[-1]) for t in (x, y, w)]
    assert torch.equal(out.reshape(-1, 32), tensor_product(DOUBLE, *full))


def test_shared_weights_are_not_broadcast() -> None:
    problem = mixed_problem(dtype="float64", shared_weights=True)
    x, y, w = random_operands(problem, 6, 6)
    out = tensor_product(problem, x.reshape(2, 3, -1), y.reshape(2, 3, -1), w)
    assert out.shape == (2, 3, problem.irreps_out.dim)
    assert torch.equal(out.reshape(6, -1), tensor_product(problem, x, y, w[None]))
