"""Random problems and operands of symmetric contractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement

import numpy as np
import torch

from mdcg.problem import Irreps, Polynomial, SymmetricContractionProblem

from .helpers import RTOL, assert_close, derivatives, generator, uninitialized_memory_is_nan

Operands = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_contraction(
    irreps_in: str = "5x0e+5x1o",
    irreps_out: str = "5x0e+5x1o",
    degree: int = 3,
    *,
    dtype: str = "float64",
    seed: int = 0,
    per_block: int = 4,
    terms: int = 5,
) -> SymmetricContractionProblem:
    """Return polynomials without any symmetry: each degree occurs, components may be empty."""
    rng = np.random.default_rng(seed)
    dim = sum(block.ir.dim for block in Irreps.parse(irreps_in))
    polynomials = []
    for i_out, block in enumerate(Irreps.parse(irreps_out)):
        for n in range(per_block):
            products = list(combinations_with_replacement(range(dim), 1 + n % degree))
            components = []
            for _ in range(block.ir.dim):
                count = min(int(rng.integers(0, terms + 1)), len(products))
                chosen = sorted(rng.choice(len(products), count, replace=False))
                components.append(tuple((float(rng.normal()), products[q]) for q in chosen))
            polynomials.append(Polynomial(i_out, tuple(components)))
    return SymmetricContractionProblem.build(irreps_in, irreps_out, polynomials, dtype=dtype)


def random_operands(
    problem: SymmetricContractionProblem, nodes: int, species: int, seed: int = 0
) -> Operands:
    """Return x, coefficients and attributes: one-hot rows, a mixture, a node of no species."""
    gen = generator(seed)
    dtype = getattr(torch, problem.dtype)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen, dtype=torch.float64).to(dtype)

    x = draw(nodes, problem.channels, problem.dim_in)
    k = draw(species, problem.num_coefficients, problem.channels)
    numbers = torch.randint(species, (nodes,), generator=gen)
    y = torch.nn.functional.one_hot(numbers, species).to(dtype)
    if nodes > 3:
        y[1] = draw(species)
        y[2] = 0
        y[3] *= 0.5  # one species with a weight other than 1
    return x, k, y


def compare(
    function: Callable[..., torch.Tensor],
    reference: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    *,
    order: int = 2,
    rtol: float | None = None,
) -> None:
    """Compare values and derivatives with those of a reference in float64."""
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    with uninitialized_memory_is_nan():
        got = derivatives(function(*leaves), leaves, order)
    leaves = [t.detach().double().requires_grad_() for t in inputs]
    want = derivatives(reference(*leaves), leaves, order)
    limit = RTOL[str(inputs[0].dtype).removeprefix("torch.")] if rtol is None else rtol
    for name, value in want.items():
        assert_close(got[name], value.to(got[name].dtype), limit, name)
