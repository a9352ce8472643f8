"""Symmetric contractions against their definition: values, derivatives, species, threads."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from mdcg.codegen.contraction.program import ContractionSpec
from mdcg.ops.contraction_kernels import HostContraction
from mdcg.ops.functional import symmetric_contraction
from mdcg.ops.reference import symmetric_contraction_reference
from mdcg.plan.contraction import HostContractionPlan
from mdcg.problem import Polynomial, SymmetricContractionProblem

from .contraction_helpers import compare, random_contraction, random_operands
from .helpers import assert_close, threads

pytestmark = pytest.mark.compiler

SMALL = random_contraction("3x0e+3x1o", "3x0e+3x1o", 3, per_block=3)

# channels below, at and above vector widths; blocks of one kind twice; pseudo-vectors
CASES = {
    "linear": ("4x0e+4x1o", "4x1o", 1, 3),
    "quadratic": ("17x0e+17x1o", "17x0e+17x1o", 2, 6),
    "cubic": ("32x0e+32x1o+32x2e", "32x1o+32x2e", 3, 6),
    "quartic": ("7x0e+7x1o", "7x0e+7x1o+7x1e", 4, 8),
    "one channel": ("1x0e+1x2e", "1x0e", 3, 6),
    "wide rows": ("9x0e+9x1o+9x2e+9x3o+9x4e", "9x0e", 2, 4),
    "twice": ("40x1o+40x1o", "40x0e+40x0e", 3, 6),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str, dtype: str) -> None:
    into, out, degree, count = CASES[name]
    problem = random_contraction(into, out, degree, dtype=dtype, per_block=count)
    x, k, y = random_operands(problem, 11, 4)
    compare(
        lambda x, k: symmetric_contraction(problem, x, k, y),
        lambda x, k: symmetric_contraction_reference(problem, x, k, y.double()),
        (x, k),
    )


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_derivatives_of_third_and_fourth_order(dtype: str) -> None:
    problem = SMALL.with_dtype(dtype)
    x, k, y = random_operands(problem, 5, 3)
    compare(
        lambda x, k: symmetric_contraction(problem, x, k, y),
        lambda x, k: symmetric_contraction_reference(problem, x, k, y.double()),
        (x, k),
        order=4 if dtype == "float64" else 3,
        rtol=1e-11 if dtype == "float64" else 1e-4,
    )


def test_coefficients_per_node_and_gradients_of_attributes() -> None:
    x, k, y = random_operands(SMALL, 6, 6)
    compare(
        lambda x, k: symmetric_contraction(SMALL, x, k),
        lambda x, k: symmetric_contraction_reference(SMALL, x, k),
        (x, k),
    )
    compare(
        lambda x, k, y: symmetric_contraction(SMALL, x, k, y),
        lambda x, k, y: symmetric_contraction_reference(SMALL, x, k, y),
        (x, k, y),
    )


def test_species_numbers() -> None:
    x, k, _ = random_operands(SMALL, 6, 4)
    species = torch.tensor([3, 0, 0, 2, 3, 1])
    one_hot = torch.nn.functional.one_hot(species, 4).double()
    want = symmetric_contraction(SMALL, x, k, one_hot)
    for numbers in (species, species.int()):
        assert torch.equal(symmetric_contraction(SMALL, x, k, numbers), want)
    assert torch.equal(symmetric_contraction(SMALL, x, k[species]), want)
    with pytest.raises(ValueError, match="species -1 to 3, expected 0 to 3"):
        symmetric_contraction(SMALL, x, k, torch.tensor([3, 0, 0, 2, 3, -1]))
    with pytest.raises(TypeError, match=r"node_attrs is torch\.int16"):
        symmetric_contraction(SMALL, x, k, species.short())


def test_attributes_that_are_not_numbers_are_seen() -> None:
    x, k, y = random_operands(SMALL, 6, 4)
    y[4, 2] = float("nan")
    out = symmetric_contraction(SMALL, x, k, y)
    assert bool(torch.isnan(out[4]).any())
    assert bool(torch.isfinite(out[[0, 1, 2, 3, 5]]).all())


@pytest.mark.parametrize("nodes", [0, 1])
def test_few_nodes(nodes: int) -> None:
    x, k, y = random_operands(SMALL, nodes, 3)
    x.requires_grad_()
    k.requires_grad_()
    out = symmetric_contraction(SMALL, x, k, y)
    assert out.shape == (nodes, 12)
    dx, dk = torch.autograd.grad(out.sum(), (x, k), create_graph=True)
    assert dx.shape == x.shape
    assert bool(dk.any()) == bool(nodes)
    (ddx,) = torch.autograd.grad(dx.square().sum() + dk.sum(), x)
    assert ddx.shape == x.shape


def test_no_polynomials() -> None:
    problem = SymmetricContractionProblem.build("4x0e", "4x0e+4x1o", [], dtype="float64")
    x = torch.randn(3, 4, 1, dtype=torch.float64, requires_grad=True)
    out = symmetric_contraction(problem, x, x.new_zeros(2, 0, 4), torch.tensor([0, 1, 1]))
    assert out.shape == (3, 16)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), x)[0].any()


def test_features_of_zero() -> None:
    x, k, y = random_operands(SMALL, 5, 3)
    compare(
        lambda x, k: symmetric_contraction(SMALL, x, k, y),
        lambda x, k: symmetric_contraction_reference(SMALL, x, k, y),
        (torch.zeros_like(x), k),
    )


def test_operands_that_are_views() -> None:
    x, k, y = random_operands(SMALL, 5, 3)
    want = symmetric_contraction(SMALL, x, k, y)
    strided = (x.permute(2, 0, 1).contiguous().permute(1, 2, 0), k.repeat(1, 1, 2)[..., :3])
    assert torch.equal(symmetric_contraction(SMALL, *strided, y.t().contiguous().t()), want)


def test_bitwise_the_same_for_every_number_of_threads() -> None:
    problem = random_contraction("20x0e+20x1o", "20x0e+20x1o", 3, dtype="float32")
    x, k, y = random_operands(problem, 150, 5)

    def run() -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (x, k)]
        out = symmetric_contraction(problem, *leaves, y)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(t.square().sum() for t in first), leaves)
        return [out, *first, *second]

    found = []
    for count in (1, 2, 3, 7):
        with threads(count):
            found.append(run())
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("lanes", [1, 2, 4, 8, 16, 32])
def test_plans_by_hand(lanes: int) -> None:
    problem = random_contraction("11x0e+11x1o", "11x0e+11x1o", 3)
    x, k, y = random_operands(problem, 7, 3)
    plan = HostContractionPlan(HostContraction(problem).plan.level, lanes, nodes_per_task=3)
    compare(
        lambda x, k: symmetric_contraction(problem, x, k, y, plan=plan),
        lambda x, k: symmetric_contraction_reference(problem, x, k, y),
        (x, k),
        order=1,
    )


def test_only_what_is_wanted_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    load = HostContraction.load

    def spy(self: HostContraction, spec: ContractionSpec) -> Any:
        seen.append(str(spec))
        return load(self, spec)

    monkeypatch.setattr(HostContraction, "load", spy)
    x, k, y = random_operands(SMALL, 5, 3)
    x.requires_grad_()
    (dx,) = torch.autograd.grad(symmetric_contraction(SMALL, x, k, y).sum(), x)
    assert seen == ["contraction_forward", "contraction_backward_wants_x"]
    seen.clear()
    k.requires_grad_()
    g = torch.ones(5, 12, dtype=torch.float64)
    (dx,) = torch.autograd.grad(symmetric_contraction(SMALL, x, k, y), x, g, create_graph=True)
    torch.autograd.grad(dx.square().sum(), k)
    assert seen == [
        "contraction_forward",
        "contraction_backward_wants_xw",
        "contraction_double_backward_given_x_wants_xw",
    ]


# -- transforms -----------------------------------------------------------------------------------


def _scalar(kind: Any, y: torch.Tensor) -> Any:
    return lambda x, k: torch.sin(kind(SMALL, x, k, y)).sum()


TRANSFORMS: dict[str, Any] = {
    "grad": lambda f: grad(f, (0, 1)),
    "grad of grad": lambda f: grad(lambda *t: grad(f, 0)(*t).square().sum(), (0, 1)),
    "jacrev": lambda f: jacrev(f, (0, 1)),
    "jacfwd": lambda f: jacfwd(f, (0, 1)),
    "jvp of grad": lambda f: lambda *t: jvp(grad(f, (0, 1)), t, tuple(torch.cos(a) for a in t)),
    "jvp of grad of grad": lambda f: (
        lambda *t: jvp(TRANSFORMS["grad of grad"](f), t, tuple(torch.cos(a) for a in t))
    ),
    "hessian": lambda f: hessian(f, 0),
    "mixed hessian": lambda f: jacrev(jacrev(f, 1), 0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    x, k, y = random_operands(SMALL, 2, 2)
    kinds = (symmetric_contraction, symmetric_contraction_reference)
    got, want = (TRANSFORMS[name](_scalar(kind, y))(x, k) for kind in kinds)
    got, want = (torch.utils._pytree.tree_leaves(tree) for tree in (got, want))
    for a, b in zip(got, want, strict=True):
        assert_close(a, b, 1e-11)


def test_gradients_of_attributes_under_transforms() -> None:
    x, k, y = random_operands(SMALL, 4, 3)
    got, want = (
        grad(lambda t, kind=kind: kind(SMALL, x, k, t).square().sum())(y)
        for kind in (symmetric_contraction, symmetric_contraction_reference)
    )
    assert_close(got, want, 1e-12)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(y, torch.cos(y))
        moved = forward_ad.unpack_dual(symmetric_contraction(SMALL, x, k, dual)).tangent
    assert_close(moved, symmetric_contraction_reference(SMALL, x, k, torch.cos(y)), 1e-12)


def test_operator_without_formula_for_attributes_says_so() -> None:
    x, k, y = random_operands(SMALL, 4, 3)
    out = torch.ops.mdcg.symmetric_contraction(x, k, y.requires_grad_(), SMALL.to_json(), "")
    with pytest.raises(NotImplementedError, match="no gradient with respect to node attributes"):
        out.sum().backward()


def test_vmap() -> None:
    samples = [random_operands(SMALL, 4, 3, seed=s) for s in range(3)]
    x, k, y = (torch.stack(parts) for parts in zip(*samples, strict=True))
    out = vmap(lambda *t: symmetric_contraction(SMALL, *t))(x, k, y)
    want = torch.stack([symmetric_contraction_reference(SMALL, *s) for s in samples])
    assert_close(out, want, 1e-12)


@pytest.mark.parametrize("name", ["", "_backward", "_double_backward"])
def test_opcheck(name: str) -> None:
    x, k, y = random_operands(SMALL, 4, 3)
    x.requires_grad_()
    k.requires_grad_()
    g = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    a, b = torch.randn_like(x).requires_grad_(), torch.randn_like(k).requires_grad_()
    tail = (y, SMALL.to_json(), "")
    arguments: tuple[Any, ...] = {
        "": (x, k, *tail),
        "_backward": (x, k, g, *tail, [True, False]),
        "_double_backward": (x, k, g, a, b, *tail, [True, False, True]),
    }[name]
    operator = getattr(torch.ops.mdcg, f"symmetric_contraction{name}").default
    torch.library.opcheck(operator, arguments)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_with_any_number_of_nodes() -> None:
    torch._dynamo.reset()
    function = torch.compile(
        partial(symmetric_contraction, SMALL), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for nodes in (5, 6, 9):
        x, k, y = random_operands(SMALL, nodes, 3, seed=nodes)
        leaves = [x.requires_grad_(), k.requires_grad_()]
        got, want = (
            torch.autograd.grad(torch.tanh(f(x, k, y)).sum(), leaves)
            for f in (function, partial(symmetric_contraction, SMALL))
        )
        for a, b in zip(got, want, strict=True):
            assert_close(a, b, 1e-13)


# -- wrong arguments ------------------------------------------------------------------------------


def test_wrong_arguments() -> None:
    x, k, y = random_operands(SMALL, 4, 3)
    with pytest.raises(ValueError, match=r"node_feats has shape \(4, 12\), expected \(n, 3, 4\)"):
        symmetric_contraction(SMALL, x.flatten(1), k, y)
    with pytest.raises(ValueError, match=r"coefficients has shape .* expected \(n_species, 6, 3\)"):
        symmetric_contraction(SMALL, x, k[:, :2], y)
    with pytest.raises(ValueError, match=r"coefficients has shape .* expected \(4, 6, 3\)"):
        symmetric_contraction(SMALL, x, k)
    with pytest.raises(ValueError, match=r"node_attrs has shape \(4, 2\), expected \(4, 3\)"):
        symmetric_contraction(SMALL, x, k, y[:, :2])
    with pytest.raises(TypeError, match=r"coefficients is torch.float32, expected torch.float64"):
        symmetric_contraction(SMALL, x, k.float(), y)
    with pytest.raises(ValueError, match="lanes, expected a power of two"):
        HostContractionPlan("x86-64-v3", 3)
    with pytest.raises(ValueError, match="nodes per task"):
        HostContractionPlan("x86-64-v3", 4, 0)


def test_empty_components_are_zero() -> None:
    polynomial = Polynomial(0, ((), ((2.0, (0, 1)),), ()))
    problem = SymmetricContractionProblem.build("2x1o", "2x1o", [polynomial], dtype="float64")
    x = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(1, 2, 3)
    out = symmetric_contraction(problem, x, torch.ones(1, 1, 2, dtype=torch.float64))
    assert out.tolist() == [[0.0, 4.0, 0.0, 0.0, 40.0, 0.0]]
