"""Kernels of edges on CPUs, for every instruction set, against e3nn and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import BSpline

from mdcg import _core

from ..internals.internals import core

torch = pytest.importorskip("torch")
with torch.serialization.safe_globals([slice]):  # e3nn 0.4.4 loads slices
    o3 = pytest.importorskip("e3nn.o3")

LEVELS = core.simd_levels()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("normalization", ["component", "norm", "integral"])
@pytest.mark.parametrize("l_max", [0, 1, 3, 6, 11])
def test_harmonics_and_gradient(level: str, double: bool, normalization: str, l_max: int) -> None:
    rng = np.random.default_rng(l_max)
    vectors = rng.normal(size=(37, 3))
    vectors[0] = (0.0, 1.0, 0.0)
    vectors[1] = (0.0, -1.0, 0.0)
    vectors[2] = (1.0, 0.0, 0.0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    d = rng.normal(size=(37, (l_max + 1) ** 2))
    values, gradient = core.edge_harmonics(l_max, normalization, unit, d, double, level)

    x = torch.tensor(unit, dtype=torch.float64, requires_grad=True)
    expected = o3.spherical_harmonics(list(range(l_max + 1)), x, True, normalization)
    ((expected * torch.tensor(d)).sum() + 0.0 * x.sum()).backward()
    tolerance = 2e-14 if double else 1e-5
    scale = float(expected.detach().abs().max())
    assert np.abs(values - expected.detach().numpy()).max() < tolerance * scale
    # e3nn's gradient has no part along the vector; ours has one without meaning
    tangent = gradient - (gradient * unit).sum(1, keepdims=True) * unit
    found = x.grad.numpy()
    bound = (5 if double else 1) * tolerance * max(1.0, np.abs(found).max())
    assert np.abs(tangent - found).max() < bound


@pytest.mark.parametrize(
    ("l_max", "normalization", "message"),
    [(13, "component", "l_max is 13"), (2, "unit", "expected component, norm or integral")],
)
def test_bad_arguments(l_max: int, normalization: str, message: str) -> None:
    unit = np.array([[1.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match=message):
        core.edge_harmonics(l_max, normalization, unit, np.zeros((1, 196)), True, LEVELS[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("double", [True, False])
def test_splines(level: str, double: bool) -> None:
    """Spline kernels give sums of B-splines and slopes, and zeros outside of the table."""
    rng = np.random.default_rng(1)
    place, by_length = rng.uniform(size=48), rng.normal(size=48)
    place[:2] = 0.0, 1.0
    within = (np.arange(48) % 5 > 0).astype(float)
    basis, slope = core.edge_splines(place, within, by_length, double, level)
    degree = 9 if double else 5
    basis, slope = (np.reshape(a, (degree, 48)) for a in (basis, slope))

    def b_splines(d: int) -> np.ndarray:  # nonzero between knots 0 and 1
        return np.stack(
            [BSpline.basis_element(np.arange(j - d, j + 2))(place) for j in range(d + 1)]
        )

    sums = np.cumsum(b_splines(degree)[:0:-1], axis=0)[::-1]
    tolerance = 1e-15 if double else 1e-7
    assert np.abs(basis - within * sums).max() < tolerance
    assert np.abs(slope - by_length * b_splines(degree - 1)).max() < 4 * tolerance


@pytest.mark.parametrize(
    ("r_max", "r_0", "sender_table", "expected"),
    [
        ([5.0], [], [], False),
        ([5.0, 4.0, 4.0, 5.0], [], [], True),
        ([5.0, 5.0, 4.0, 4.0], [], [], False),  # the receiver's type only
        ([5.0], [1.0, 2.0, 2.0, 1.0], [], True),
        ([5.0], [], [0.5, 0.25], True),
    ],
)
def test_weights_that_depend_on_the_sender(
    r_max: list[float], r_0: list[float], sender_table: list[float], expected: bool
) -> None:
    assert core.depends_on_sender(2, r_max, r_0, sender_table) is expected


@pytest.mark.parametrize("threads", [0, 1, 2, 5])
@pytest.mark.parametrize("moved", [None, 0, 6, 12])
@pytest.mark.parametrize("by", [0.51, np.nan])
def test_threads_see_each_atom_that_leaves_the_skin(
    threads: int, moved: int | None, by: float
) -> None:
    before = np.arange(39.0).reshape(13, 3)
    now = before + 0.2
    if moved is not None:
        now[moved, 1] = before[moved, 1] + by
    if moved is not None and np.isnan(by):
        with pytest.raises(_core.GeometryError, match="no usable position"):
            core.needs_rebuild(before, now, 1.0, threads)
        return
    assert core.needs_rebuild(before, now, 1.0, threads) is (moved is not None)
