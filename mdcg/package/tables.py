"""Choose whether a radial network is tabulated, and how finely, by measuring the error.

The table is the engine's (``csrc/engine/edges/radial_table.hpp``): for each pair of types a clamped
cubic spline through the exact network on a uniform grid, whose derivative is the force. It is built
when a package runs; here the same spline is made and compared with the network between its knots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .radial import Radial

__all__ = ["TableError", "choose_table", "single_precision_error", "table_error"]

Array = NDArray[np.float64]

#: Numbers of intervals that are tried.
LADDER = (256, 512, 1024, 2048, 4096)
#: The table begins at this part of the cutoff; shorter edges take the exact network.
_FIRST = 1.0 / 16.0
#: A cubic spline's error is largest in the middle, its derivative's at the other two.
_PLACES = (0.5, 0.2113248654, 0.7886751346)
#: Pairs of types and outputs that are looked at, spread over all of them.
_MAX_PAIRS, _MAX_OUTPUTS = 6, 384


@dataclass(frozen=True)
class TableError:
    """Largest errors, relative to the largest weight and to the largest derivative of one."""

    value: float
    slope: float

    def within(self, limit: TableError) -> bool:
        """Whether both errors are below those of `limit`."""
        return self.value <= limit.value and self.slope <= limit.slope


def choose_table(radial: Radial, mode: str | None, dtype: str) -> dict[str, Any] | None:
    """Return the manifest's entry for a table, or None where the network is evaluated as it is.

    Parameters
    ----------
    radial : Radial
    mode : {"table", "exact"} or None
        None: a table in float32, where its error stays below that of float32 arithmetic.
    dtype : str
        Of the package.
    """
    if mode == "exact" or not radial.by_type or (mode is None and dtype == "float64"):
        return None
    limit = single_precision_error(radial)
    found = TableError(np.inf, np.inf)
    for knots in LADDER:
        found = table_error(radial, knots)
        if found.within(limit):
            break
    else:
        if mode is None:
            return None
    # an upper bound that is the same on every machine
    error = max(found.value, found.slope)
    return {"knots": knots, "error": float(f"{1.1 * error:.1e}")}


def table_error(radial: Radial, knots: int) -> TableError:
    """Return the largest error of a table between its knots, over pairs of types."""
    worst = [0.0, 0.0]
    columns = _columns(radial)
    for receiver, sender in _pairs(radial):
        r_max = _cutoff(radial, receiver, sender)
        first = _FIRST * r_max
        step = (r_max - first) / knots
        grid = first + step * np.arange(knots + 1, dtype=np.float64)
        grid[-1] = np.nextafter(r_max, 0.0)
        values, slopes = (rows[:, columns] for rows in radial.evaluate(grid, receiver, sender))
        spline = _spline(values, slopes[0], slopes[-1], step)
        inside = np.concatenate([grid[:-1] + step * place for place in _PLACES])
        exact, slope = (rows[:, columns] for rows in radial.evaluate(inside, receiver, sender))
        got = [_at(spline, place, step) for place in _PLACES]
        for number, want in enumerate((exact, slope)):
            error = np.abs(np.concatenate([pair[number] for pair in got]) - want).max()
            size = np.abs(want).max()
            worst[number] = max(worst[number], float(error / size) if size else 0.0)
    return TableError(*worst)


def single_precision_error(radial: Radial) -> TableError:
    """Return the error of the network's own evaluation in float32, of value and derivative."""
    worst = [0.0, 0.0]
    columns = _columns(radial)
    for receiver, sender in _pairs(radial):
        r_max = _cutoff(radial, receiver, sender)
        grid = np.linspace(0.25 * r_max, 0.999 * r_max, 400)
        exact = radial.evaluate(grid, receiver, sender)
        single = radial.evaluate(grid, receiver, sender, dtype="float32")
        for number, (want, got) in enumerate(zip(exact, single, strict=True)):
            size = np.abs(want[:, columns]).max()
            if size:
                error = float(np.abs(got[:, columns] - want[:, columns]).max() / size)
                worst[number] = max(worst[number], error)
    return TableError(*worst)


def _cutoff(radial: Radial, receiver: int, sender: int) -> float:
    r_max = np.asarray(radial.r_max)
    return float(r_max if r_max.ndim == 0 else r_max[receiver, sender])


def _columns(radial: Radial) -> NDArray[np.int_]:
    count = radial.weight_numel
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_OUTPUTS)).astype(int))


def _pairs(radial: Radial) -> list[tuple[int, int]]:
    """Return pairs of types that differ: extremes of what differs, and some between."""
    tables = [
        table
        for table in (
            radial.r_max if np.ndim(radial.r_max) else None,
            None if radial.transform is None else radial.transform["r_0"],
        )
        if table is not None
    ]
    ends = [end for end in (radial.sender, radial.receiver) if end is not None]
    if not tables and not ends:
        return [(0, 0)]
    n_types = len(np.asarray(tables[0] if tables else ends[0]))
    every = [(i, j) for i in range(n_types) for j in range(n_types)]
    if tables and not ends:
        keys = np.stack([np.asarray(table).reshape(-1) for table in tables], axis=1)
        every = [every[k] for k in np.unique(keys, axis=0, return_index=True)[1]]
    chosen = np.unique(np.linspace(0, len(every) - 1, _MAX_PAIRS).astype(int))
    return [every[k] for k in chosen]


def _spline(values: Array, first: Array, last: Array, step: float) -> Array:
    """Return coefficients of the clamped cubic B-spline, shape (knots + 3, outputs)."""
    count = len(values)
    upper = np.zeros(count)
    inner = np.zeros_like(values)
    for i in range(count):
        below = 0.0 if not i else 2.0 if i == count - 1 else 1.0
        above = 2.0 if not i else 0.0 if i == count - 1 else 1.0
        right = 6.0 * values[i]
        if not i:
            right = right + 2.0 * step * first
        if i == count - 1:
            right = right - 2.0 * step * last
        pivot = 4.0 - (below * upper[i - 1] if i else 0.0)
        upper[i] = above / pivot
        inner[i] = (right - below * inner[i - 1] if i else right) / pivot
    for i in range(count - 2, -1, -1):
        inner[i] -= upper[i] * inner[i + 1]
    before = inner[1] - 2.0 * step * first
    after = inner[-2] + 2.0 * step * last
    return np.concatenate([before[None], inner, after[None]])


def _at(spline: Array, t: float, step: float) -> tuple[Array, Array]:
    """Return values and derivatives at one place of every interval."""
    s = 1.0 - t
    value = (s**3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (3 * s**3 - 6 * s**2 + 4) / 6, t**3 / 6)
    slope = (-(s**2) / 2, t * (3 * t - 4) / 2, -s * (3 * s - 4) / 2, t**2 / 2)
    rows = [spline[k : len(spline) - 3 + k] for k in range(4)]
    found = [
        sum((factor * row for factor, row in zip(factors, rows, strict=True)), np.zeros(()))
        for factors in (value, slope)
    ]
    return np.asarray(found[0]), np.asarray(found[1]) / step
