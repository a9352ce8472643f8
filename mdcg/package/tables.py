"""Choose whether a radial network is tabulated, and how finely, by measuring the error.

The table is the engine's (``csrc/engine/edges/radial_table.hpp``): for each pair of types a spline
through the exact network, on a grid that is uniform in the square root of the length. `knots`
intervals reach from a sixteenth of the cutoff to the cutoff, and a sixth as many of the same width,
rounded down, lie below; edges that are still shorter take the exact network. On CPUs the spline has
a sixth of the knots, and degree 5 in float32 and 9 in float64; on GPUs it is cubic, and float32
alone uses it. Its derivative is the force. It is built when a package runs; here all are made in
float64 and compared with the network between the knots, each output for itself: layers behind the
convolution can make a small output as important as a large one. What this does not see, such as the
rounding of the table itself, shows when the package is verified, and then the table has more knots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from ..errors import CheckpointError
from .radial import Radial

Array = NDArray[np.float64]

#: Numbers of intervals that are tried.
LADDER = (256, 384, 512, 768, 1024, 1536, 2048)
#: Square root of length over cutoff where the `knots` intervals begin. Below it there are
#: ``knots // _BEFORE`` more of the same width.
_START, _BEFORE = 1.0 / 4.0, 6
#: Degree of each spline, and by what its number of intervals is smaller than `knots`.
_DEGREES = {"float32": ((3, 1), (5, 6)), "float64": ((9, 6),)}
#: Places in an interval: the error of a spline is largest in the middle, of its derivative at the
#: others or at the ends.
_PLACES = (0.02, 0.2113248654, 0.5, 0.7886751346, 0.98)
#: Ranges of the length that are compared one by one: an output differs by orders of magnitude.
_WINDOWS = 8
#: Pairs of types and outputs that are looked at, spread over all of them.
_MAX_PAIRS, _MAX_OUTPUTS = 5, 128
#: Error in Å of a length between positions in float32, some 10 Å from the origin.
_POSITIONS = 5e-7
#: In float32 the error of an output is at most this part of what float32 itself makes of it.
_SINGLE = 1.0
#: In float64 errors of weights and of their derivatives are at most these parts of the largest
#: ones (1e-13 and 1e-11 on GPUs: `PolynomialTable::EXACT` of the engine). They are those of
#: rounding, which for derivatives grows with the number of knots.
_DOUBLE = (1e-13, 2e-11)


@dataclass(frozen=True)
class TableError:
    """How far a table is from the exact network.

    Parameters
    ----------
    value, slope : float
        Largest error of a weight and of its derivative, relative to the largest of either.
    rounding : float
        Root mean square error of either over that of a model in float32, network and positions,
        of the worst output in the worst range of lengths; below 1 the table is nearer to the exact
        network than that.
    """

    value: float
    slope: float
    rounding: float


def choose_table(
    radial: Radial, mode: str | None, dtype: str, fewest: int = 0
) -> dict[str, Any] | None:
    """Return the manifest's entry for a table, or None where the network is evaluated as it is.

    Parameters
    ----------
    radial : Radial
    mode : {"table", "exact"} or None
        None: a table where its error stays below that of arithmetic in this dtype.
    dtype : str
        Of the package.
    fewest : int
        Least number of intervals of a table.
    """
    if mode == "exact" or not radial.by_type:
        return None
    for knots in [each for each in LADDER if each >= fewest]:
        error = table_error(radial, knots, dtype)
        largest = max(error.value, error.slope)
        if dtype == "float32":
            found = error.rounding <= _SINGLE
        else:
            found = error.value <= _DOUBLE[0] and error.slope <= _DOUBLE[1]
            largest = max(largest, *_DOUBLE)  # rounding differs between machines
        if found:
            break
    else:
        if mode is None:
            return None
    # two digits, rounded up: the same on every machine
    return {"knots": knots, "error": float(f"{1.1 * largest:.1e}")}


def table_error(radial: Radial, knots: int, dtype: str) -> TableError:
    """Return the errors of tables between their knots, the worst of several pairs of types.

    Parameters
    ----------
    radial : Radial
    knots : int
        Intervals of a cubic; splines of a higher degree have a sixth as many.
    dtype : str
        Of the package.
    """
    worst = [0.0, 0.0, 0.0]
    columns = _columns(radial)
    for receiver, sender in _pairs(radial):
        for degree, part in _DEGREES[dtype]:
            errors = _errors(radial, receiver, sender, columns, -(-knots // part), degree)
            worst = [max(pair) for pair in zip(worst, errors, strict=True)]
    return TableError(*worst)


def _errors(
    radial: Radial,
    receiver: int,
    sender: int,
    columns: NDArray[np.int_],
    knots: int,
    degree: int,
) -> tuple[float, float, float]:
    """Return the fields of :class:`TableError` for one spline."""
    r_max = np.asarray(radial.r_max)
    reach = float(r_max if r_max.ndim == 0 else r_max[receiver, sender])
    step = np.sqrt(reach) * (1.0 - _START) / knots
    start = np.sqrt(reach) * _START - knots // _BEFORE * step
    knots += knots // _BEFORE
    more = (degree - 3) // 2  # places at either end, besides the derivative
    ends = np.concatenate([np.arange(more), np.arange(knots - more, knots)]) + 0.5
    places = np.sort(np.concatenate([np.arange(knots + 1), ends]))
    lengths = np.minimum((start + step * places) ** 2, np.nextafter(reach, 0.0))
    values, slopes = (part[:, columns] for part in radial.evaluate(lengths, receiver, sender))
    if not (np.isfinite(values).all() and np.isfinite(slopes).all()):
        raise CheckpointError(
            f"a radial network gives NaN or infinity within its cutoff of {reach:.4g} Å: the "
            "training has diverged, or the model is damaged"
        )
    first, last = (2.0 * step * np.sqrt(lengths[end]) * slopes[end] for end in (0, -1))
    all_knots = np.arange(-degree, knots + degree + 1, dtype=np.float64)
    spline = make_interp_spline(
        places, values, k=degree, t=all_knots, bc_type=([(1, first)], [(1, last)])
    )
    at = (np.arange(knots)[:, None] + np.array(_PLACES)).reshape(-1)
    roots = start + step * at
    found = spline(at), spline.derivative()(at) / (2.0 * step * roots)[:, None]
    exact = radial.evaluate(roots**2, receiver, sender)
    moved = roots**2 + _POSITIONS * (-1.0) ** np.arange(len(roots))
    single = radial.evaluate(moved, receiver, sender, dtype="float32")
    # window -1: below the `knots` intervals
    window = np.floor((roots**2 / reach - _START**2) / (1.0 - _START**2) * _WINDOWS)
    largest, rounding = [0.0, 0.0], 0.0
    for number in (0, 1):
        want = exact[number][:, columns]
        error, own = found[number] - want, single[number][:, columns] - want
        sizes = np.abs(want).max(axis=0)
        size = float(sizes.max())
        largest[number] = float(np.abs(error).max()) / size if size else 0.0
        for part in range(-1, _WINDOWS):
            rows = window == part
            ratios = _rms(error[rows]) / np.maximum(_rms(own[rows]), 1e-9 * sizes + 1e-300)
            rounding = max(rounding, float(ratios.max()))
    return largest[0], largest[1], rounding


def _rms(values: Array) -> Array:
    """Return the root mean square of each column."""
    found: Array = np.sqrt(np.mean(values**2, axis=0))
    return found


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
