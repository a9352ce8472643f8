"""Choose whether a radial network is tabulated, and how finely, by measuring the error.

The table is the engine's (``csrc/engine/edges/radial_table.hpp``): for each pair of types a clamped
cubic spline through the exact network, on a grid that is uniform in the square root of the length.
Its derivative is the force. It is built when a package runs; here the same is made in float64 and
compared with the network between the knots. Rounding of the table itself is that of a weight and of
its derivative, as the engine keeps both; it shows when the package is verified.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .radial import Radial

Array = NDArray[np.float64]

#: Numbers of intervals that are tried.
LADDER = (256, 384, 512, 768, 1024, 1536, 2048)
#: The table begins at this part of the cutoff; shorter edges take the exact network.
_FIRST = 1.0 / 16.0
#: Places in an interval: the error of a cubic is largest in the middle, of its derivative at the
#: other two.
_PLACES = (0.2113248654, 0.5, 0.7886751346)
#: Ranges of the length that are compared one by one: weights differ by orders of magnitude.
_WINDOWS = 8
#: Pairs of types and outputs that are looked at, spread over all of them.
_MAX_PAIRS, _MAX_OUTPUTS = 5, 128
#: Error in Å of a length between positions in float32, some 10 Å from the origin.
_POSITIONS = 5e-7
#: In float32 the error of a table is at most this part of what float32 itself makes.
_SINGLE = 0.3
#: In float64 a table is held to this error, relative to the largest weight.
_DOUBLE = 2e-7


@dataclass(frozen=True)
class TableError:
    """How far a table is from the exact network.

    Parameters
    ----------
    value, slope : float
        Largest error of a weight and of its derivative, relative to the largest of either.
    rounding : float
        Root mean square error of either over that of a model in float32, network and positions,
        in the worst range of lengths; below 1 the table is nearer to the exact network than that.
    """

    value: float
    slope: float
    rounding: float


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
    for knots in LADDER:
        error = table_error(radial, knots)
        largest = max(error.value, error.slope)
        if error.rounding <= _SINGLE if dtype == "float32" else largest <= _DOUBLE:
            break
    else:
        if mode is None:
            return None
    # two digits, rounded up: the same on every machine
    return {"knots": knots, "error": float(f"{1.1 * largest:.1e}")}


def table_error(radial: Radial, knots: int) -> TableError:
    """Return the errors of a table between its knots, the worst of several pairs of types."""
    worst = [0.0, 0.0, 0.0]
    columns = _columns(radial)
    for receiver, sender in _pairs(radial):
        r_max = np.asarray(radial.r_max)
        reach = float(r_max if r_max.ndim == 0 else r_max[receiver, sender])
        start = np.sqrt(_FIRST * reach)
        step = (np.sqrt(reach) - start) / knots
        roots = start + step * np.arange(knots + 1, dtype=np.float64)
        lengths = np.minimum(roots**2, np.nextafter(reach, 0.0))
        values, slopes = (part[:, columns] for part in radial.evaluate(lengths, receiver, sender))
        # derivatives with respect to the root
        ends = [2.0 * roots[at] * slopes[at] for at in (0, -1)]
        spline = _spline(values, ends[0], ends[1], step)
        places = np.array(_PLACES)[None]
        inside = (roots[:-1, None] + step * places).reshape(-1)
        found = _look_up(spline, inside, np.repeat(places, knots, 0).reshape(-1), step)
        exact = radial.evaluate(inside**2, receiver, sender)
        moved = inside**2 + _POSITIONS * (-1.0) ** np.arange(len(inside))
        single = radial.evaluate(moved, receiver, sender, dtype="float32")
        window = ((inside**2 / reach - _FIRST) / (1.0 - _FIRST) * _WINDOWS).astype(int)
        for number in (0, 1):
            want = exact[number][:, columns]
            error = found[number] - want
            own = single[number][:, columns] - want
            size = float(np.abs(want).max())
            worst[number] = max(worst[number], float(np.abs(error).max()) / size if size else 0.0)
            for part in range(_WINDOWS):
                rows = window == part
                ratio = _rms(error[rows]) / max(_rms(own[rows]), 1e-9 * size, 1e-300)
                worst[2] = max(worst[2], ratio)
    return TableError(*worst)


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0


def _columns(radial: Radial) -> NDArray[np.int_]:
    count = radial.weight_numel
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_OUTPUTS)).astype(int))


def _pairs(radial: Radial) -> list[tuple[int, int]]:
    """Return pairs of types that differ: extremes of what differs, and some between."""
    tables = [
        np.asarray(table)
        for table in (
            radial.r_max if np.ndim(radial.r_max) else None,
            None if radial.transform is None else radial.transform["r_0"],
        )
        if table is not None
    ]
    ends = [np.asarray(end) for end in (radial.sender, radial.receiver) if end is not None]
    if not tables and not ends:
        return [(0, 0)]
    n_types = len((tables or ends)[0])
    every = [(i, j) for i in range(n_types) for j in range(n_types)]
    if tables and not ends:
        keys = np.stack([table.reshape(-1) for table in tables], axis=1)
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


def _look_up(spline: Array, root: Array, t: Array, step: float) -> tuple[Array, Array]:
    """Return values and derivatives with respect to the length."""
    interval = np.repeat(np.arange(len(spline) - 3), len(_PLACES))
    s = 1.0 - t
    values = (s**3, 3.0 * t**3 - 6.0 * t**2 + 4.0, 3.0 * s**3 - 6.0 * s**2 + 4.0, t**3)
    slopes = (-(s**2), t * (3.0 * t - 4.0), -s * (3.0 * s - 4.0), t**2)
    value = np.zeros((len(t), spline.shape[1]))
    slope = np.zeros_like(value)
    for row, (basis, derivative) in enumerate(zip(values, slopes, strict=True)):
        rows = spline[interval + row]
        value += basis[:, None] / 6.0 * rows
        slope += (derivative / (4.0 * root * step))[:, None] * rows
    return value, slope
