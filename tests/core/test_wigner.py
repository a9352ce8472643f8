"""Wigner 3j symbols: against e3nn, and by what defines them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.polynomial import Legendre

from mdcg.problem import wigner_3j

from .helpers import e3nn_o3, e3nn_version, random_rotation

Degrees = tuple[int, int, int]


def triples(l_max: int) -> Iterator[Degrees]:
    for l1, l2 in itertools.product(range(l_max + 1), repeat=2):
        for l3 in range(abs(l1 - l2), min(l1 + l2, l_max) + 1):
            yield l1, l2, l3


def sampled(l_max: int, count: int) -> list[Degrees]:
    """Return some triples with a degree above 4; always the same ones, the largest among them."""
    high = [t for t in triples(l_max) if max(t) > 4]
    picked = np.random.default_rng(7).choice(len(high), count, replace=False)
    return [*(high[i] for i in sorted(picked)), (l_max, l_max, l_max)]


LOW = list(triples(4))
HIGH = sampled(11, 20)


def e3nn_3j(degrees: Degrees) -> np.ndarray:
    return e3nn_o3().wigner_3j(*degrees, dtype=torch.float64).numpy()


@pytest.mark.parametrize("degrees", [*LOW, *HIGH], ids=str)
def test_equals_e3nn(degrees: Degrees) -> None:
    ours, theirs = wigner_3j(*degrees), e3nn_3j(degrees)
    if e3nn_version() < (0, 5):
        # the sign convention changed in 0.5
        theirs = theirs * np.sign(np.sum(ours * theirs))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 5e-14


def test_signs_against_e3nn() -> None:
    """Only even permutations of (1, l, l), l >= 2, have another sign, and only before e3nn 0.5."""
    other = {t for t in LOW if np.sum(wigner_3j(*t) * e3nn_3j(t)) < 0}
    expected = {p for l in (2, 3, 4) for p in ((1, l, l), (l, 1, l), (l, l, 1))}
    assert other == (expected if e3nn_version() < (0, 5) else set())


def real_harmonics(degree: int, points: np.ndarray) -> np.ndarray:
    """Return real spherical harmonics [n_points, 2l+1], polar axis y, azimuth from z to x.

    For l = 1 they are x, y, z. All m of one degree have equal length over the sphere.
    """
    x, y, z = points.T
    azimuth, polynomial = np.arctan2(x, z), Legendre.basis(degree)
    columns = {}
    for m in range(degree + 1):
        associated = (1 - y**2) ** (m / 2) * (polynomial.deriv(m)(y) if m else polynomial(y))
        ratio = np.prod([float(k) for k in range(degree - m + 1, degree + m + 1)])
        norm = np.sqrt((2.0 if m else 1.0) / ratio)
        columns[m] = norm * associated * np.cos(m * azimuth)
        if m:
            columns[-m] = norm * associated * np.sin(m * azimuth)
    return np.stack([columns[m] for m in range(-degree, degree + 1)], axis=1)


def rotation_of_irrep(degree: int, rotation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return D with Y(R r) = D Y(r), from the harmonics at random points."""
    points = rng.normal(size=(8 * (2 * degree + 1), 3))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    before, after = real_harmonics(degree, points), real_harmonics(degree, points @ rotation.T)
    return np.linalg.lstsq(before, after, rcond=None)[0].T


@pytest.mark.parametrize(
    "degrees", [*triples(3), (2, 4, 5), (5, 5, 4), (3, 6, 6), (8, 7, 3)], ids=str
)
def test_is_invariant_under_rotations(degrees: Degrees, rng: np.random.Generator) -> None:
    rotation = random_rotation(rng)
    matrices = [rotation_of_irrep(degree, rotation, rng) for degree in degrees]
    for matrix in matrices:
        assert np.abs(matrix @ matrix.T - np.eye(len(matrix))).max() < 1e-11
    w3j = wigner_3j(*degrees)
    rotated = np.einsum("abc,ia,jb,kc->ijk", w3j, *matrices)
    assert np.abs(rotated - w3j).max() < 1e-11


@pytest.mark.parametrize("degrees", [*LOW, *HIGH], ids=str)
def test_norm_and_orthogonality(degrees: Degrees) -> None:
    w3j = wigner_3j(*degrees)
    for axis in range(3):
        rows = np.moveaxis(w3j, axis, 0).reshape(w3j.shape[axis], -1)
        assert np.abs(rows @ rows.T * len(rows) - np.eye(len(rows))).max() < 1e-13


@pytest.mark.parametrize("degrees", HIGH, ids=str)
def test_zeros_are_exact(degrees: Degrees) -> None:
    """What is not zero is far above rounding, so that counting nonzeros means something."""
    entries = np.abs(wigner_3j(*degrees))
    assert entries[entries > 0].min() > 1e-6
    assert (entries == 0).any()


def test_known_values() -> None:
    assert wigner_3j(0, 0, 0).tolist() == [[[1.0]]]
    assert np.allclose(wigner_3j(1, 1, 0)[:, :, 0], np.eye(3) / np.sqrt(3), atol=1e-15)
    cross = wigner_3j(1, 1, 1)
    epsilon = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        epsilon[i, j, k], epsilon[j, i, k] = 1, -1
    assert np.abs(cross - epsilon / np.sqrt(6)).max() < 1e-15


@pytest.mark.parametrize(
    "degrees", [(1, 1, 3), (0, 0, 1), (5, 1, 3), (-1, 1, 0), (2, -2, 0)], ids=str
)
def test_degrees_that_do_not_couple_are_refused(degrees: Degrees) -> None:
    with pytest.raises(ValueError, match=r"degrees \(.*\) violate \|l1 - l2\| <= l3 <= l1 \+ l2"):
        wigner_3j(*degrees)


def test_result_is_shared_and_read_only() -> None:
    assert wigner_3j(1, 2, 3) is wigner_3j(1, 2, 3)
    with pytest.raises(ValueError, match="read-only"):
        wigner_3j(1, 2, 3)[0, 0, 0] = 1.0
