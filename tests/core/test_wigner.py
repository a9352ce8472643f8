"""Wigner 3j symbols: against e3nn, and by what defines them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from mdcg.problem import wigner_3j

from .helpers import e3nn_o3, e3nn_version

Degrees = tuple[int, int, int]


def triples(l_max: int) -> Iterator[Degrees]:
    for l1, l2 in itertools.product(range(l_max + 1), repeat=2):
        for l3 in range(abs(l1 - l2), min(l1 + l2, l_max) + 1):
            yield l1, l2, l3


def sampled(l_max: int, count: int) -> list[Degrees]:
    """Return a fixed sample of triples with a degree above 4, including the largest."""
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
        # e3nn 0.5 changed the sign convention
        theirs = theirs * np.sign(np.sum(ours * theirs))
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() < 5e-14


def test_signs_against_e3nn() -> None:
    """Signs equal e3nn's, except for permutations of (1, l, l), l >= 2, before e3nn 0.5."""
    other = {t for t in LOW if np.sum(wigner_3j(*t) * e3nn_3j(t)) < 0}
    expected = {p for l in (2, 3, 4) for p in ((1, l, l), (l, 1, l), (l, l, 1))}
    assert other == (expected if e3nn_version() < (0, 5) else set())


@pytest.mark.parametrize("degrees", HIGH, ids=str)
def test_zeros_are_exact(degrees: Degrees) -> None:
    """Entries of 3j symbols are exactly zero or far above rounding."""
    entries = np.abs(wigner_3j(*degrees))
    assert entries[entries > 0].min() > 1e-6
    assert (entries == 0).any()


@pytest.mark.parametrize("degrees", [*LOW, *HIGH, (16, 12, 16)], ids=str)
def test_components_are_orthonormal_to_the_last_bits(degrees: Degrees) -> None:
    symbol = wigner_3j(*degrees)
    products = np.einsum("abc,abd->cd", symbol, symbol)
    assert np.abs(products * len(products) - np.eye(len(products))).max() < 4e-15


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
    with pytest.raises(ValueError, match=r"degrees \(17, 1, 17\): expected at most 16"):
        wigner_3j(17, 1, 17)


def test_result_is_shared_and_read_only() -> None:
    assert wigner_3j(1, 2, 3) is wigner_3j(1, 2, 3)
    with pytest.raises(ValueError, match="read-only"):
        wigner_3j(1, 2, 3)[0, 0, 0] = 1.0
