"""Symmetric tensors as polynomials, and the shortest independent ones that span them."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Orders of the columns that are tried; another order gives another basis of the same space.
_ORDERS = 12


@lru_cache(maxsize=64)
def monomials(dim: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Return all products of `degree` of `dim` variables, as ascending indices."""
    return tuple(combinations_with_replacement(range(dim), degree))


def symmetrize(tensor: Array, degree: int) -> Array:
    """Return the coefficients of the polynomials that a tensor stands for.

    Parameters
    ----------
    tensor : array, shape (n, dim, ..., dim, k)
        With `degree` axes of the length of the input.
    degree : int

    Returns
    -------
    array, shape (k, n, number of monomials)
        Monomials as in :func:`monomials`.
    """
    n, dim, k = tensor.shape[0], tensor.shape[1], tensor.shape[-1]
    ascending = np.sort(np.indices((dim,) * degree).reshape(degree, -1), axis=0)
    # position of an ascending tuple in lexicographic order
    position = np.zeros(ascending.shape[1], dtype=np.int64)
    tables = [[comb(v + d - 1, d) for v in range(dim + 1)] for d in range(1, degree + 1)]
    for place in range(degree):
        remaining = degree - place
        table = np.asarray(tables[remaining - 1])
        low = ascending[place - 1] if place else np.zeros_like(position)
        # tuples that start below this index, of those that start at `low` or above
        position += table[dim - low] - table[dim - ascending[place]]
    order = np.argsort(position, kind="stable")
    starts = np.searchsorted(position[order], np.arange(len(monomials(dim, degree))))
    flat = tensor.reshape(n, -1, k)[:, order]
    return np.ascontiguousarray(np.add.reduceat(flat, starts, axis=1).transpose(2, 0, 1))


def reduce_rows(rows: Array, tolerance: float) -> tuple[Array, Array]:
    """Find few sparse rows that span the given ones.

    Rows that share columns are reduced together, to row echelon form with full pivoting inside
    the first columns that have something left. Of several orders of the columns, the one with the
    fewest nonzeros is taken.

    Parameters
    ----------
    rows : array, shape (k, n)
    tolerance : float
        What counts as zero, relative to the largest entry.

    Returns
    -------
    basis : array, shape (r, n)
    combination : array, shape (r, k)
        ``rows = combination.T @ basis``, within the tolerance.
    """
    k, n = rows.shape
    limit = tolerance * float(np.max(np.abs(rows), initial=0.0))
    bases, combinations = [], []
    for members, columns in _clusters(np.abs(rows) > limit):
        part = rows[np.ix_(members, columns)]
        best = min(
            (_echelon(part, order, limit, tolerance) for order in _orders(part)),
            key=lambda found: int(np.count_nonzero(found[0])),
        )
        basis = np.zeros((len(best[0]), n))
        basis[:, columns] = best[0]
        combination = np.zeros((len(best[0]), k))
        combination[:, members] = part[:, best[1]].T
        bases.append(basis)
        combinations.append(combination)
    if not bases:
        return np.zeros((0, n)), np.zeros((0, k))
    return np.vstack(bases), np.vstack(combinations)


def _clusters(used: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return (rows, columns) that have no column in common with the others, by first column."""
    label = np.full(used.shape[0], -1)
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for start in np.argsort(np.where(used.any(1), used.argmax(1), used.shape[1]), kind="stable"):
        if label[start] >= 0 or not used[start].any():
            continue
        columns = used[start]
        while True:
            members = used[:, columns].any(1)
            wider = used[members].any(0)
            if np.array_equal(wider, columns):
                break
            columns = wider
        label[members] = len(found)
        found.append((np.flatnonzero(members), np.flatnonzero(columns)))
    return found


def _orders(part: Array) -> list[NDArray[np.int64]]:
    n = part.shape[1]
    plain = np.arange(n)
    density = np.count_nonzero(part, axis=0)
    rng = np.random.default_rng(n)
    found = [plain, plain[::-1], np.argsort(density, kind="stable")]
    found.append(found[-1][::-1])
    # one row has one basis only
    return found[:1] if len(part) == 1 else found + [rng.permutation(n) for _ in range(_ORDERS)]


def _echelon(
    part: Array, order: NDArray[np.int64], limit: float, tolerance: float
) -> tuple[Array, NDArray[np.int64]]:
    """Return reduced rows with unit pivots, and the columns of the pivots."""
    work = part.copy()
    pivots: list[int] = []
    for column in order:
        rank = len(pivots)
        if rank == len(work):
            break
        row = rank + int(np.argmax(np.abs(work[rank:, column])))
        # a pivot much smaller than its row would amplify rounding
        if abs(work[row, column]) <= max(limit, 1e-3 * float(np.max(np.abs(work[row])))):
            continue
        work[[rank, row]] = work[[row, rank]]
        work[rank] /= work[rank, column]
        others = np.arange(len(work)) != rank
        work[others] -= np.outer(work[others, column], work[rank])
        work[others, column] = 0.0
        pivots.append(int(column))
    basis = work[: len(pivots)]
    if len(pivots) < len(work) and float(np.max(np.abs(work[len(pivots) :]))) > limit:
        # small pivots were passed over: take them after all
        more, columns = _echelon(work[len(pivots) :], order, limit, tolerance)
        columns_all = np.asarray([*pivots, *columns])
        basis = np.vstack([basis, more])
        for row in range(len(pivots), len(basis)):  # each has zeros where the others have pivots
            for above in range(row):
                basis[above] -= basis[above, columns_all[row]] * basis[row]
        return _cleaned(basis, columns_all, tolerance), columns_all
    columns_all = np.asarray(pivots, dtype=np.int64)
    return _cleaned(basis, columns_all, tolerance), columns_all


def _cleaned(basis: Array, pivots: NDArray[np.int64], tolerance: float) -> Array:
    """Set what cancelled to zero; a row's own size decides, as rows have unit pivots."""
    small = tolerance * np.max(np.abs(basis), axis=1, keepdims=True)
    basis = np.where(np.abs(basis) > small, basis, 0.0)
    basis[:, pivots] = np.eye(len(pivots))
    return basis
