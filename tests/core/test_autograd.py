"""Differentiation: finite differences, forward mode, and that nothing is computed in vain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from mdcg.ops import conv
from mdcg.ops.reference import conv_reference

from .helpers import (
    assert_close,
    compile_ahead,
    mixed_problem,
    random_graph,
    random_operands,
    recorded_specs,
    small_problem,
    usual_specs,
)

pytestmark = pytest.mark.compiler

MIXED = mixed_problem(dtype="float64")
SMALL = small_problem(dtype="float64")
GRAPH = random_graph(3, 4, 5, seed=1)

Inputs = tuple[torch.Tensor, ...]


@pytest.fixture(scope="module", autouse=True)
def _kernels() -> None:
    compile_ahead([(MIXED, usual_specs()), (SMALL, usual_specs(True))])


def convolution(problem: Any, graph: Any = GRAPH, kind: Any = conv) -> Callable[..., torch.Tensor]:
    def function(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        sides = (graph.sender, graph.receiver)
        out: torch.Tensor = kind(problem, x, y, w, *sides, num_receivers=graph.n_receivers)
        return out

    return function


# -- what is computed -----------------------------------------------------------------------------


def specs_of(function: Callable[[], Any]) -> list[str]:
    with recorded_specs() as seen:
        function()
    return seen


@pytest.mark.parametrize("wanted", ["x", "y", "w", "xy", "xw", "yw", "xyw", ""])
def test_gradients_nobody_asked_for_are_not_computed(wanted: str) -> None:
    operands = dict(zip("xyw", random_operands(SMALL, 3, 5), strict=True))
    leaves = {k: t.requires_grad_(k in wanted) for k, t in operands.items()}

    def run() -> None:
        out = convolution(SMALL)(*leaves.values())
        assert out.requires_grad == bool(wanted)
        if wanted:
            torch.autograd.grad(out.sum(), [leaves[k] for k in wanted])

    expected = ["conv_forward"] + ([f"conv_backward_wants_{wanted}"] if wanted else [])
    assert specs_of(run) == expected


def test_a_gradient_wanted_of_one_of_several_leaves_is_alone() -> None:
    """Only requested gradients are computed, even if other operands require grad."""
    x, y, w = random_operands(SMALL, 3, 5, grad=True)
    edges = y * 2  # not a leaf

    def forces() -> None:
        energy = convolution(SMALL)(x.detach(), edges, w.detach()).sum()
        torch.autograd.grad(energy, y)

    assert specs_of(forces) == ["conv_forward", "conv_backward_wants_y"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        # Forces, then parameters; an operand is never differentiated only with respect to itself.
        ("y", "w", "conv_double_backward_given_y_wants_w"),
        ("y", "xw", "conv_double_backward_given_y_wants_xw"),
        ("x", "yw", "conv_double_backward_given_x_wants_yw"),
        ("yw", "w", "conv_double_backward_given_yw_wants_yw"),
    ],
)
def test_double_backward_computes_what_is_wanted(first: str, second: str, expected: str) -> None:
    operands = dict(zip("xyw", random_operands(SMALL, 3, 5), strict=True))
    leaves = {k: t.requires_grad_(k in first + second) for k, t in operands.items()}

    def run() -> None:
        out = convolution(SMALL)(*leaves.values())
        g = torch.ones_like(out)
        # g requires no grad
        forces = torch.autograd.grad(out, [leaves[k] for k in first], g, create_graph=True)
        torch.autograd.grad(sum(f.square().sum() for f in forces), [leaves[k] for k in second])

    backward = "conv_backward_wants_" + "".join(k for k in "xyw" if k in first + second)
    assert specs_of(run) == ["conv_forward", backward, expected]


def test_gradients_that_are_zero_by_structure() -> None:
    """A second derivative that is zero by structure runs no kernel."""
    x, y, w = random_operands(SMALL, 3, 5)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(convolution(SMALL)(x, y, w).sum(), x, create_graph=True)
    with recorded_specs() as seen:
        (zero,) = torch.autograd.grad(dx.square().sum(), x)
    assert not zero.any()
    assert seen == []


def test_training_step_matches_the_reference() -> None:
    """Gradients of a loss of energy and forces equal those of the reference."""
    results = []
    for kind in (conv, conv_reference):
        x, y, w = random_operands(SMALL, 3, 5, grad=True)
        parameter = torch.ones(1, dtype=torch.float64, requires_grad=True)
        energy = convolution(SMALL, kind=kind)(x * parameter, y, w * parameter).sin().sum()
        (forces,) = torch.autograd.grad(energy, y, create_graph=True)
        loss = energy + forces.square().sum()
        results.append(torch.autograd.grad(loss, [parameter, x, w]))
    for got, want in zip(*results, strict=True):
        assert_close(got, want, 1e-12)


def test_backward_twice_through_one_graph() -> None:
    x, y, w = random_operands(SMALL, 3, 5, grad=True)
    out = convolution(SMALL)(x, y, w).sum()
    first = torch.autograd.grad(out, [x, y, w], retain_graph=True)
    again = torch.autograd.grad(out, [x, y, w])
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, [x, y, w])


def test_operand_changed_in_place_before_backward_is_noticed() -> None:
    x, y, w = random_operands(SMALL, 3, 5, grad=True)
    features = x * 1.0
    out = convolution(SMALL)(features, y, w).sum()
    features.detach_().add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(out, y)


def test_gradients_accumulate_in_leaves() -> None:
    x, y, w = random_operands(SMALL, 3, 5, grad=True)
    for _ in range(2):
        convolution(SMALL)(x, y, w).sum().backward()
    gradients = torch.autograd.grad(convolution(SMALL)(x, y, w).sum(), [x, y, w])
    for leaf, gradient in zip((x, y, w), gradients, strict=True):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, 2 * gradient)


# -- forward mode ---------------------------------------------------------------------------------


@pytest.mark.parametrize("moving", ["x", "y", "w", "xyw"])
def test_forward_mode(moving: str) -> None:
    operands = dict(zip("xyw", random_operands(MIXED, 3, 5), strict=True))
    tangents = dict(zip("xyw", random_operands(MIXED, 3, 5, seed=9), strict=True))
    found = []
    for kind in (conv, conv_reference):
        with forward_ad.dual_level():
            duals = [
                forward_ad.make_dual(t, tangents[k]) if k in moving else t
                for k, t in operands.items()
            ]
            out = forward_ad.unpack_dual(convolution(MIXED, kind=kind)(*duals))
            assert out.tangent is not None
            found.append((out.primal.clone(), out.tangent.clone()))
    for got, want in zip(*found, strict=True):
        assert_close(got, want, 1e-12)


class _Seen(TorchDispatchMode):
    """A dispatch mode that records mdcg's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        if func.namespace == "mdcg":
            self.names.append(func.name().partition("::")[2])
        result: torch.Tensor = func(*args, **(kwargs or {}))
        return result


def test_dispatch_modes_see_operators() -> None:
    """A dispatch mode sees mdcg's operators, and results are the same as without the dispatcher."""
    inputs = random_operands(SMALL, GRAPH.n_senders, GRAPH.n_edges, grad=True)
    function = convolution(SMALL)

    def values() -> list[torch.Tensor]:
        out = function(*inputs)
        first = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first), inputs)
        return [t.detach() for t in (out, *first, *second)]

    plain = values()
    with _Seen() as seen:
        watched = values()
    assert {"conv", "conv_backward", "conv_double_backward"} <= set(seen.names)
    for a, b in zip(plain, watched, strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        quick = function(*inputs)
    assert torch.equal(quick, plain[0])
    assert not quick.requires_grad
    with torch.inference_mode():
        assert torch.equal(function(*inputs), plain[0])
