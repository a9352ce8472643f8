"""Converts symmetric tensors to polynomials, and finds short independent ones that span them."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Number of random orders of the columns to try. Each gives a basis of the same space.
_RANDOM_ORDERS = 12


@lru_cache(maxsize=64)
def monomials(dim: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """Return all products of `degree` of `dim` variables, as ascending indices."""
    return tuple(combinations_with_replacement(range(dim), degree))


def symmetrize(tensor: Array, degree: int) -> Array:
    """Return the coefficients of the polynomials that a tensor stands for.

    The tensor [n, dim, ..., dim, num_paths] has `degree` axes of length `dim`. The result is
    [num_paths, n, num_monomials], with the monomials of :func:`monomials`.
    """
    n, dim, k = tensor.shape[0], tensor.shape[1], tensor.shape[-1]
    ascending = np.sort(np.indices((dim,) * degree).reshape(degree, -1), axis=0)
    # compute the position of each ascending tuple in lexicographic order, index by index
    position = np.zeros(ascending.shape[1], dtype=np.int64)
    low = np.zeros_like(position)
    for number, index in enumerate(ascending):
        remaining = degree - number
        # count[v] tuples of `remaining` indices exist for v variables
        count = np.array([comb(v + remaining - 1, remaining) for v in range(dim + 1)])
        # add the number of tuples that continue with an index from `low` to below this one
        position += count[dim - low] - count[dim - index]
        low = index
    order = np.argsort(position, kind="stable")
    starts = np.searchsorted(position[order], np.arange(len(monomials(dim, degree))))
    flat = tensor.reshape(n, -1, k)[:, order]
    return np.ascontiguousarray(np.add.reduceat(flat, starts, axis=1).transpose(2, 0, 1))


def reduce_rows(rows: Array, tolerance: float) -> tuple[Array, Array]:
    """Find few sparse rows that span the given ones.

    Rows that share columns are reduced together, to row echelon form. Several orders of the columns
    are tried, and the result with the fewest nonzeros is taken. Entries up to `tolerance`, relative
    to the largest entry, count as zero.

    The results are ``basis`` [rank, num_columns] and ``combination`` [rank, num_rows], with
    ``rows = combination.T @ basis`` within the tolerance.
    """
    k, n = rows.shape
    limit = tolerance * float(np.max(np.abs(rows), initial=0.0))
    bases, combinations = [], []
    for members, columns in _clusters(np.abs(rows) > limit):
        part = rows[np.ix_(members, columns)]
        sparsest, pivots = min(
            (_echelon(part, order, limit, tolerance) for order in _orders(part)),
            key=lambda found: int(np.count_nonzero(found[0])),
        )
        basis = np.zeros((len(sparsest), n))
        basis[:, columns] = sparsest
        combination = np.zeros((len(sparsest), k))
        combination[:, members] = part[:, pivots].T  # the pivots are unit columns of the basis
        bases.append(basis)
        combinations.append(combination)
    if not bases:
        return np.zeros((0, n)), np.zeros((0, k))
    return np.vstack(bases), np.vstack(combinations)


def _clusters(used: NDArray[np.bool_]) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return groups (rows, columns) that share no column with other groups, by first column."""
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
    if len(part) == 1:  # a single row has only one basis
        return [plain]
    by_density = np.argsort(np.count_nonzero(part, axis=0), kind="stable")
    rng = np.random.default_rng(n)
    random = [rng.permutation(n) for _ in range(_RANDOM_ORDERS)]
    return [plain, plain[::-1], by_density, by_density[::-1], *random]


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
        # too few pivots: take the small ones too
        more, columns = _echelon(work[len(pivots) :], order, limit, tolerance)
        basis = np.vstack([basis, more])
        first_new = len(pivots)
        pivots += columns.tolist()
        for row in range(first_new, len(basis)):  # make rows above zero at the new pivots
            for above in range(row):
                basis[above] -= basis[above, pivots[row]] * basis[row]
    found = np.asarray(pivots, dtype=np.int64)
    return _cleaned(basis, found, tolerance), found


def _cleaned(basis: Array, pivots: NDArray[np.int64], tolerance: float) -> Array:
    """Set entries to zero that are rounding errors relative to their row's largest entry."""
    small = tolerance * np.max(np.abs(basis), axis=1, keepdims=True)
    basis = np.where(np.abs(basis) > small, basis, 0.0)
    basis[:, pivots] = np.eye(len(pivots))
    return basis
