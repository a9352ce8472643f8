"""torch.func transforms, torch.compile, and torch's own checks of the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from mdcg.ops import ConvTensorProduct, conv, tensor_product
from mdcg.ops.reference import conv_reference, tensor_product_reference
from mdcg.problem import ConvProblem

from .helpers import (
    Graph,
    assert_close,
    compile_ahead,
    mixed_problem,
    random_graph,
    random_operands,
    small_problem,
    usual_specs,
)

pytestmark = pytest.mark.compiler

# small: jacobians call a kernel once per entry
PROBLEM = ConvProblem.build(
    "2x0e+2x1o",
    "0e+1o",
    "2x0e+2x1o",
    [(0, 0, 0), (0, 1, 1, "uvw"), (1, 0, 1, "uvu", False), (1, 1, 0)],
    dtype="float64",
)
GRAPH = random_graph(3, 3, 5, seed=1)
SMALL = small_problem(dtype="float64")

Function = Callable[..., torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    compile_ahead([(PROBLEM, usual_specs()), (SMALL, usual_specs(True))])


def scalar(kind: Any) -> Function:
    """Return a nonlinear function of x, y, w through a convolution."""

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin(kind(PROBLEM, x, y, w, GRAPH.sender, GRAPH.receiver)).sum()

    return function


def rows(kind: Any) -> Function:
    """Return a vector function of x, y, w through a batched product."""

    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin(kind(PROBLEM, x, y, w)).sum(0)

    return function


def assert_trees_close(got: Any, want: Any) -> None:
    got, want = (torch.utils._pytree.tree_leaves(tree) for tree in (got, want))
    assert len(got) == len(want) > 0
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-11)


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "grad": lambda f: grad(f, (0, 1, 2)),
    "grad of grad": lambda f: grad(lambda *t: grad(f, 1)(*t).square().sum(), (0, 1, 2)),
    "jacrev": lambda f: jacrev(f, (0, 1, 2)),
    "jacfwd": lambda f: jacfwd(f, (1, 2)),
    "jvp": lambda f: lambda *t: jvp(f, t, tuple(torch.cos(a) for a in t)),
    "jvp of grad": lambda f: lambda *t: jvp(grad(f, (0, 1, 2)), t, tuple(torch.cos(a) for a in t)),
    "jvp of grad of grad": lambda f: (
        lambda *t: jvp(TRANSFORMS["grad of grad"](f), t, tuple(torch.cos(a) for a in t))
    ),
    "vjp": lambda f: lambda *t: vjp(f, *t)[1](torch.ones_like(f(*t))),
    "hessian": lambda f: hessian(f, 1),
    "mixed hessian": lambda f: jacrev(jacrev(f, 2), 1),
    "forward over forward": lambda f: jacfwd(jacfwd(f, 1), 1),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_the_convolution(name: str) -> None:
    operands = random_operands(PROBLEM, GRAPH.n_senders, GRAPH.n_edges)
    transform = TRANSFORMS[name]
    got, want = (transform(scalar(kind))(*operands) for kind in (conv, conv_reference))
    assert_trees_close(got, want)


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "jvp", "vjp"])
def test_transforms_of_the_batched_product(name: str) -> None:
    operands = random_operands(PROBLEM, 3, 3)
    transform = TRANSFORMS[name]
    kinds = (tensor_product, tensor_product_reference)
    got, want = (transform(rows(kind))(*operands) for kind in kinds)
    assert_trees_close(got, want)


@pytest.mark.parametrize(
    "in_dims", [(0, 0, 0), (0, None, None), (None, 1, 2), (2, 0, None)], ids=str
)
def test_vmap(in_dims: tuple[int | None, ...]) -> None:
    """Gradients under vmap agree for operands batched along any dimension."""
    singles = [random_operands(PROBLEM, 3, 5, seed=seed) for seed in range(4)]
    batched = [
        singles[0][i] if dim is None else torch.stack([s[i] for s in singles], dim)
        for i, dim in enumerate(in_dims)
    ]
    got = vmap(grad(scalar(conv), (0, 1, 2)), in_dims)(*batched)
    want = [
        grad(scalar(conv_reference), (0, 1, 2))(
            *(
                b if dim is None else b.select(dim, n)
                for b, dim in zip(batched, in_dims, strict=True)
            )
        )
        for n in range(4)
    ]
    assert_trees_close(got, tuple(torch.stack(parts) for parts in zip(*want, strict=True)))


def test_vmap_over_nothing() -> None:
    x, y, w = random_operands(PROBLEM, 3, 5)
    out = vmap(lambda t: conv(PROBLEM, t, y, w, GRAPH.sender, GRAPH.receiver))(
        x.new_empty(0, *x.shape)
    )
    assert out.shape == (0, 3, PROBLEM.irreps_out.dim)


def test_ensemble_of_weights() -> None:
    """vmap over several sets of weights gives the values of single evaluations."""
    x, y, _ = random_operands(PROBLEM, 3, 5)
    weights = torch.stack([random_operands(PROBLEM, 3, 5, seed=s)[2] for s in range(3)])
    values = vmap(lambda w: scalar(conv)(x, y, w))(weights)
    assert_close(values, torch.stack([scalar(conv_reference)(x, y, w) for w in weights]), 1e-12)


# -- torch's checks -------------------------------------------------------------------------------


def operator_arguments(name: str, rows_alone: bool) -> tuple[Any, ...]:
    graph = GRAPH
    problem = mixed_problem(dtype="float64") if name != "conv" else PROBLEM
    x, y, w = random_operands(problem, 5 if rows_alone else 3, 5, grad=True)
    index = (None, None, 5) if rows_alone else (graph.sender, graph.receiver, 3)
    tail = (*index, problem.to_json(), "")
    n = index[2]
    g = torch.randn(n, problem.irreps_out.dim, dtype=torch.float64, requires_grad=True)
    if name == "conv":
        return (x, y, w, *tail)
    if name == "conv_backward":
        return (x, y, w, g, *tail, [True, False, True])
    a, c = (torch.randn_like(t).requires_grad_() for t in (x, w))
    return (x, y, w, g, a, None, c, *tail, [True, True, False, True])


@pytest.mark.parametrize("rows_alone", [False, True], ids=["graph", "rows"])
@pytest.mark.parametrize("name", ["conv", "conv_backward", "conv_double_backward"])
def test_opcheck(name: str, rows_alone: bool) -> None:
    operator = getattr(torch.ops.mdcg, name).default
    torch.library.opcheck(operator, operator_arguments(name, rows_alone))


# -- torch.compile --------------------------------------------------------------------------------


def sample(n_nodes: int, n_edges: int) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    graph = random_graph(n_nodes, n_nodes, n_edges, seed=n_edges)
    return graph, random_operands(SMALL, n_nodes, n_edges, seed=n_edges, grad=True)


def forces_and_loss(kind: Any, graph: Graph, operands: Any) -> list[torch.Tensor]:
    x, y, w = operands
    energy = torch.tanh(kind(x, y * 2, w, graph.sender, graph.receiver)).sum()
    return [energy, *torch.autograd.grad(energy, [x, y, w])]


# Dynamo reads .grad of every tensor and hides the warning, which "error" would still raise.
ignore_grad_warning = pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)


@ignore_grad_warning
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_module(backend: str) -> None:
    module = ConvTensorProduct(SMALL)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    graph, operands = sample(9, 30)
    got = forces_and_loss(compiled, graph, operands)
    want = forces_and_loss(module, graph, operands)
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-13)


def test_exported_program() -> None:
    graph, operands = sample(9, 30)
    x, y, w = (t.detach() for t in operands)
    program = torch.export.export(ConvTensorProduct(SMALL), (x, y, w, graph.sender, graph.receiver))
    assert "mdcg.conv.default" in {str(node.target) for node in program.graph.nodes}
    got = program.module()(x, y, w, graph.sender, graph.receiver)
    assert torch.equal(got, ConvTensorProduct(SMALL)(x, y, w, graph.sender, graph.receiver))


@ignore_grad_warning
def test_compiled_once_for_any_number_of_edges_and_nodes() -> None:
    module = ConvTensorProduct(SMALL)
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    for n_nodes, n_edges in ((9, 30), (9, 31), (14, 50), (7, 12), (25, 90)):
        graph, operands = sample(n_nodes, n_edges)
        got = forces_and_loss(compiled, graph, operands)
        for a, b in zip(got, forces_and_loss(module, graph, operands), strict=True):
            assert_close(a, b, 1e-13)
    assert counter.frame_count == 1


def test_compiled_function_with_forces_inside() -> None:
    """make_fx can trace a function that computes gradients, like MACE's forward."""
    torch._dynamo.reset()
    graph, (x, y, w) = sample(9, 30)
    x, w = x.detach(), w.detach()

    def forces(y: torch.Tensor) -> torch.Tensor:
        return grad(lambda t: torch.tanh(conv(SMALL, x, t, w, graph.sender, graph.receiver)).sum())(
            y
        )

    traced = torch.fx.experimental.proxy_tensor.make_fx(forces)(y.detach())
    names = {str(node.target) for node in traced.graph.nodes}
    assert "mdcg.conv_backward.default" in names
    assert_close(traced(y.detach()), forces(y.detach()), 1e-13)
