"""Products with scalars whose rows repeat: values, gradients, and when they are left alone."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

from mdcg.ops.reference import tensor_product_reference
from mdcg.patch import species_product
from mdcg.patch.species_product import SpeciesProduct, can_group
from mdcg.problem import ConvProblem

pytestmark = pytest.mark.compiler

PROBLEM = ConvProblem.build(
    "5x0e+3x1o",
    "4x0e",
    "6x0e+2x1o",
    [(0, 0, 0, "uvw", True, 0.7), (1, 0, 1, "uvw", True, 1.3)],
    dtype="float64",
    shared_weights=True,
)
SPECIES = [0, 2, 2, 1, 0, 2, 1, 1, 0, 2, 0, 1]


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    species_product._recent.clear()


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(len(SPECIES), PROBLEM.irreps_in1.dim, generator=generator, dtype=torch.float64)
    rows = torch.randn(3, PROBLEM.irreps_in2.dim, generator=generator, dtype=torch.float64)
    w = torch.randn(PROBLEM.weight_numel, generator=generator, dtype=torch.float64)
    return x, rows[SPECIES], w


def test_value_and_derivatives() -> None:
    x, y, w = operands()
    product = SpeciesProduct(PROBLEM)
    assert can_group(x, y)
    wanted = tensor_product_reference(PROBLEM, x, y, w)
    torch.testing.assert_close(product.grouped(x, y, w), wanted, rtol=1e-13, atol=1e-13)
    leaves = (x.requires_grad_(), w.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, w: product.grouped(x, y, w), leaves)
    assert torch.autograd.gradgradcheck(lambda x, w: product.grouped(x, y, w), leaves)


def test_groups_at_once() -> None:
    """The masked product, which CUDA devices use, agrees with the reference and has derivatives."""
    x, y, w = operands()
    product = SpeciesProduct(PROBLEM)
    groups = species_product._groups_of(y)
    assert groups.mask.sum(0).tolist() == [SPECIES.count(s) for s in groups_species(y, groups)]
    wanted = tensor_product_reference(PROBLEM, x, y, w)
    torch.testing.assert_close(product._masked(x, groups, w), wanted, rtol=1e-13, atol=1e-13)
    leaves = (x.requires_grad_(), w.requires_grad_())
    assert torch.autograd.gradcheck(lambda x, w: product._masked(x, groups, w), leaves)
    assert torch.autograd.gradgradcheck(lambda x, w: product._masked(x, groups, w), leaves)

    # Weights may change without a change of torch's version counter.
    w = w.detach().clone()
    product._masked(x, groups, w)
    w.data.mul_(2)
    torch.testing.assert_close(product._masked(x, groups, w), 2 * wanted, rtol=1e-13, atol=1e-13)


def groups_species(y: torch.Tensor, groups: species_product._Groups) -> list[int]:
    """Return which species every distinct row is."""
    return [SPECIES[int((y == row).all(1).nonzero()[0])] for row in groups.rows]


def test_training_after_a_call_in_inference_mode() -> None:
    x, y, w = operands()
    product = SpeciesProduct(PROBLEM)
    with torch.inference_mode():
        assert can_group(x, y)
        product.grouped(x, y, w)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(product.grouped(x, y, w).sum(), x)
    assert gradient.abs().max() > 0


def test_what_needs_more_than_values_is_left_alone() -> None:
    x, y, _ = operands()
    assert not can_group(x, y.clone().requires_grad_())
    assert not can_group(x, torch.randn(len(x), 4, dtype=x.dtype))  # no repeated rows
    with forward_ad.dual_level():
        assert not can_group(x, forward_ad.make_dual(y, torch.ones_like(y)))
    found = []
    torch.jit.trace(lambda t: found.append(can_group(t, y)) or t, (x,), check_trace=False)
    assert found == [False]


def test_an_unchanged_tensor_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CUDA devices, an unchanged tensor is not compared again, which would block the host."""
    looked = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda a, b: looked.append(1) or equal(a, b))
    monkeypatch.setattr(
        species_product, "_identity", lambda t: (t.untyped_storage()._cdata, t._version)
    )
    x, y, w = operands()
    product = SpeciesProduct(PROBLEM)

    def value() -> torch.Tensor:
        assert can_group(x, y)
        return product.grouped(x, y, w)

    first = value()
    looked.clear()
    assert equal(value(), first)
    assert not looked
    y.copy_(y.flip(0))  # other values in the same memory
    torch.testing.assert_close(value(), tensor_product_reference(PROBLEM, x, y, w))
    y.copy_(y.flip(0))  # the first values, which are cached
    assert equal(value(), first)
    looked.clear()
    assert equal(product.grouped(x, y.clone(), w), first)  # equal values in other memory
    assert looked
