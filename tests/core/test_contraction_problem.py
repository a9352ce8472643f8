"""Problems of symmetric contractions: validation, text, and the reduction of coupling tensors."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mdcg.errors import UnsupportedProblemError
from mdcg.problem import FoldedTensors, Polynomial, SymmetricContractionProblem
from mdcg.problem.reduction import monomials, reduce_rows, symmetrize

from .contraction_helpers import random_contraction

Array = np.ndarray[Any, Any]


def evaluated(tensor: Array, x: Array) -> Array:
    """Return the tensor contracted with x in all its inner axes, shape (n, k)."""
    while tensor.ndim > 2:
        tensor = np.einsum("ni...k,i->n...k", tensor, x)
    return tensor


def values(problem: SymmetricContractionProblem, x: Array) -> list[Array]:
    """Return the components of every polynomial at x."""
    return [
        np.array([sum(v * np.prod(x[list(ix)]) for v, ix in terms) for terms in p.components])
        for p in problem.polynomials
    ]


@pytest.mark.parametrize("degree", [1, 2, 3, 4])
def test_symmetrized_tensors_are_the_same_polynomials(
    degree: int, rng: np.random.Generator
) -> None:
    tensor = rng.normal(size=(2, *(4,) * degree, 3))
    dense = symmetrize(tensor, degree)
    assert dense.shape == (3, 2, len(monomials(4, degree)))
    x = rng.normal(size=4)
    powers = np.array([np.prod(x[list(q)]) for q in monomials(4, degree)])
    assert np.allclose(dense @ powers, evaluated(tensor, x).T, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rank", [0, 1, 3, 6])
def test_reduction_finds_the_rank_and_nothing_is_lost(rank: int, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(9, rank)) @ rng.normal(size=(rank, 20))
    basis, combination = reduce_rows(rows, 1e-11)
    assert basis.shape == (rank, 20)
    assert np.allclose(combination.T @ basis, rows, rtol=0, atol=1e-11)
    # a row of n columns in general position keeps rank - 1 zeros
    assert np.count_nonzero(basis) <= rank * (20 - rank + 1)


def test_reduction_keeps_what_has_no_column_in_common_apart() -> None:
    rows = np.zeros((4, 6))
    rows[0, :2], rows[2, :2], rows[1, 3:5], rows[3, 5] = (1, 2), (2, 4), (1, -1), 0.5
    basis, combination = reduce_rows(rows, 1e-12)
    assert np.count_nonzero(basis) == 5
    assert np.array_equal(combination.T @ basis, rows)


def test_reduction_takes_small_pivots_where_there_is_nothing_else() -> None:
    rows = np.array([[1.0, 1.0, 0.0], [1.0, 1.0 + 1e-5, 1e-6]])
    basis, combination = reduce_rows(rows, 1e-12)
    assert len(basis) == 2
    assert np.allclose(combination.T @ basis, rows, rtol=0, atol=1e-14)


def test_tensors_are_folded_exactly(rng: np.random.Generator) -> None:
    """Folded tensors with dependent paths and zeros evaluate exactly and survive JSON."""
    tensors = []
    for i_out, dim in ((0, 1), (1, 3)):
        for degree in (1, 2, 3):
            free = rng.normal(size=(dim, *(4,) * degree, 2))
            paths = np.concatenate([free, free @ rng.normal(size=(2, 3))], -1)
            if (i_out, degree) == (0, 1):
                paths[:] = 0
            tensors.append((i_out, paths))
    fold = FoldedTensors.fold("7x0e+7x1o", "7x0e+7x1o", tensors, dtype="float64")
    assert fold.combination.shape == (10, 30)  # two of five paths each, except for the zeros
    assert fold.error < 1e-13
    assert [p.i_out for p in fold.problem.polynomials] == [0] * 4 + [1] * 6
    weights, x = rng.normal(size=30), rng.normal(size=4)
    got = [np.zeros(1), np.zeros(3)]
    for coefficient, polynomial, value in zip(
        fold.combination @ weights, fold.problem.polynomials, values(fold.problem, x), strict=True
    ):
        got[polynomial.i_out] += coefficient * value
    want = [np.zeros(1), np.zeros(3)]
    for n, (i_out, tensor) in enumerate(tensors):
        want[i_out] += evaluated(tensor, x) @ weights[5 * n : 5 * n + 5]
    assert np.allclose(np.concatenate(got), np.concatenate(want), rtol=1e-12)
    again = FoldedTensors.from_json(fold.to_json())
    assert again.problem == fold.problem
    assert np.array_equal(again.combination, fold.combination)


def test_rounding_to_single_precision_does_not_count(rng: np.random.Generator) -> None:
    """Paths that differ only by float32 rounding are dependent in float32, not in float64."""
    free = rng.normal(size=(1, 4, 4, 2))
    paths = np.concatenate([free, free @ rng.normal(size=(2, 3))], -1).astype(np.float32)
    single, double = (
        FoldedTensors.fold("2x0e+2x1o", "2x0e", [(0, paths)], dtype=dtype)
        for dtype in ("float32", "float64")
    )
    assert single.problem.num_coefficients == 2
    assert double.problem.num_coefficients == 5
    assert single.error < 1e-6
    assert double.error < 1e-13


def test_derivative() -> None:
    problem = random_contraction(degree=4, per_block=8)
    derivative = problem.derivative()
    rng = np.random.default_rng(2)
    x, a = rng.normal(size=(2, problem.dim_in))
    h = 1e-6
    numeric = [
        (after - before) / (2 * h)
        for after, before in zip(
            values(problem, x + h * a), values(problem, x - h * a), strict=True
        )
    ]
    exact = values(derivative, np.concatenate([x, a]))
    for got, want in zip(exact, numeric, strict=True):
        assert np.allclose(got, want, rtol=1e-7, atol=1e-7)
    assert str(derivative.irreps_in) == "5x0e+5x1o+5x0e+5x1o"


def test_text_is_canonical() -> None:
    problem = random_contraction()
    again = SymmetricContractionProblem.from_json(problem.to_json())
    assert again == problem
    assert again.to_json() == problem.to_json()
    assert again.key() == problem.key() != random_contraction(seed=1).key()
    assert problem.with_dtype("float32").key() != problem.key()
    assert problem.with_dtype("float64") is problem
    with pytest.raises(ValueError, match="not a problem description"):
        SymmetricContractionProblem.from_json("{}")


@pytest.mark.parametrize(
    ("irreps", "polynomial", "message"),
    [
        (("4x0e+3x1o", "4x0e"), Polynomial(0, ((),)), "have multiplicities"),
        (("4x0e", "4x0e"), Polynomial(1, ((),)), "has 1 blocks, got 1"),
        (("4x0e", "4x1o"), Polynomial(0, ((),)), "1 components, expected 3"),
        (("4x1o", "4x0e"), Polynomial(0, (((1.0, (2, 1)),),)), "expected ascending indices"),
        (("4x1o", "4x0e"), Polynomial(0, (((1.0, (3,)),),)), "expected ascending indices below 3"),
        (("4x1o", "4x0e"), Polynomial(0, (((1.0, ()),),)), "expected ascending indices"),
        (("4x1o", "4x0e"), Polynomial(0, (((float("nan"), (1,)),),)), "expected a finite one"),
    ],
)
def test_what_does_not_fit_is_refused(
    irreps: tuple[str, str], polynomial: Polynomial, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        SymmetricContractionProblem.build(*irreps, [polynomial])


def test_degree_above_four_is_refused() -> None:
    with pytest.raises(UnsupportedProblemError, match="degree 5"):
        SymmetricContractionProblem.build("1x0e", "1x0e", [Polynomial(0, (((1.0, (0,) * 5),),))])
    with pytest.raises(UnsupportedProblemError, match="order 5"):
        FoldedTensors.fold("1x0e", "1x0e", [(0, np.ones((1, *(1,) * 5, 1)))], dtype="float64")


def test_counts() -> None:
    terms = [tuple(ix) for ix in product(range(2), repeat=2) if ix[0] <= ix[1]]
    polynomial = Polynomial(0, (tuple((1.0, ix) for ix in terms),))
    problem = SymmetricContractionProblem.build("3x0e+3x0e", "3x0e", [polynomial])
    assert (problem.channels, problem.dim_in, problem.dim_out) == (3, 2, 1)
    assert (problem.degree, problem.nnz, problem.num_coefficients) == (2, 3, 1)
    assert "degree 2, 1 polynomials, 3 monomials" in str(problem)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_reduction_that_loses_something_is_refused(
    dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [(0, rng.normal(size=(1, 4, 4, 3)))]
    assert FoldedTensors.fold("2x0e+2x1o", "2x0e", tensors, dtype=dtype).error < 1e-12

    def lossy(rows: Array, tolerance: float) -> tuple[Array, Array]:
        basis, combination = reduce_rows(rows, tolerance)
        return basis, combination * (1 + 100 * tolerance)

    monkeypatch.setattr("mdcg.problem.contraction_problem.reduce_rows", lossy)
    with pytest.raises(UnsupportedProblemError, match=f"was reduced with an error of .* {dtype}"):
        FoldedTensors.fold("2x0e+2x1o", "2x0e", tensors, dtype=dtype)
