"""The neighbour list with a skin: against brute force, and independent of the skin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase.calculators.calculator import InputError

from mdcg.calculators import SkinNeighborList

from ..engine.cells import CELLS, PBC

CPU = torch.device("cpu")
R_MAX = 3.7


def brute_force(
    positions: np.ndarray, cell: np.ndarray, pbc: np.ndarray, cutoff: float
) -> set[tuple[int, ...]]:
    """Return (receiver, sender, shift) of all pairs, by trying every image that could matter."""
    reach = np.zeros(3, dtype=int)
    used = cell[pbc]
    if len(used):
        fractions = positions @ np.linalg.pinv(used)
        heights = 1.0 / np.linalg.norm(np.linalg.pinv(used), axis=0)
        reach[pbc] = np.ceil(np.ptp(fractions, axis=0) + cutoff / heights).astype(int)
    found = set()
    for index in np.ndindex(*(2 * reach + 1)):
        shift = np.array(index) - reach
        vectors = positions[None] - positions[:, None] + shift @ np.where(pbc[:, None], cell, 0.0)
        for i, j in zip(*np.nonzero((vectors**2).sum(-1) < cutoff**2), strict=True):
            if i != j or shift.any():
                found.add((int(j), int(i), *map(int, shift)))
    return found


def as_rows(edges: object) -> np.ndarray:
    """Return edges as rows (receiver, sender, shift)."""
    index, shifts = edges.edge_index.numpy(), edges.unit_shifts.numpy()
    return np.column_stack([index[1], index[0], shifts.astype(int)])


@pytest.mark.parametrize("skin", [0.0, 0.6])
@pytest.mark.parametrize("pbc", PBC, ids=str)
@pytest.mark.parametrize("shape", CELLS)
def test_edges_are_all_pairs_in_order(
    shape: str, pbc: tuple[int, ...], skin: float, rng: np.random.Generator
) -> None:
    cell, periodic = CELLS[shape], np.array(pbc, dtype=bool)
    positions = rng.uniform(-3.0, 9.0, (12, 3))
    edges = SkinNeighborList(R_MAX, skin, CPU).update(positions, cell, periodic)
    rows = as_rows(edges)
    assert {tuple(row) for row in rows.tolist()} == brute_force(positions, cell, periodic, R_MAX)
    assert rows.tolist() == sorted(rows.tolist()), "not sorted by receiver, sender, shift"
    assert len(np.unique(rows, axis=0)) == len(rows)
    np.testing.assert_allclose(
        edges.shifts, edges.unit_shifts.numpy() @ np.where(periodic[:, None], cell, 0.0), atol=1e-12
    )


def test_rows_of_open_directions_may_hold_anything(rng: np.random.Generator) -> None:
    positions = rng.uniform(0.0, 6.0, (10, 3))
    pbc = np.array([True, True, False])
    wanted = None
    for third in ([0.0, 0.0, 9.0], [0.0, 0.0, 0.0], [8.0, 7.0, 0.0], [np.nan] * 3):
        cell = np.array([[8.0, 0.0, 0.0], [1.0, 7.0, 0.0], third])
        edges = SkinNeighborList(R_MAX, 0.5, CPU).update(positions, cell, pbc)
        wanted = as_rows(edges) if wanted is None else wanted
        np.testing.assert_array_equal(as_rows(edges), wanted)
        assert torch.isfinite(edges.shifts).all()


def test_result_does_not_depend_on_skin_or_history(rng: np.random.Generator) -> None:
    cell, pbc = CELLS["triclinic"], np.array([True, True, True])
    positions = rng.uniform(0.0, 8.0, (20, 3))
    lists = [SkinNeighborList(R_MAX, skin, CPU) for skin in (0.0, 0.3, 2.0)]
    for _ in range(60):
        positions = positions + rng.normal(scale=0.02, size=positions.shape)
        first, *others = [each.update(positions, cell, pbc) for each in lists]
        for other in others:
            for name in ("edge_index", "unit_shifts", "shifts"):
                assert torch.equal(getattr(first, name), getattr(other, name))
    builds = [each.num_builds for each in lists]
    assert builds[0] == 60
    assert builds[0] > builds[1] > builds[2] >= 1


def test_rebuilds_only_when_it_must() -> None:
    cell, pbc = np.diag([9.0, 9.0, 9.0]), np.array([True, True, True])
    positions = np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [5.0, 5.0, 5.0]])
    near = SkinNeighborList(3.0, 0.5, CPU)
    first = near.update(positions, cell, pbc)
    moved = positions + np.array([[0.1, 0.1, 0.1], [0.0, 0.0, 0.0], [0.0, 0.2, 0.0]])
    assert near.update(moved, cell, pbc) is first, "no edge came or went"
    assert near.num_builds == 1
    moved = positions + np.array([[0.26, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    near.update(moved, cell, pbc)
    assert near.num_builds == 2, "an atom moved by more than skin / 2"
    near.update(moved, cell * 1.001, pbc)
    assert near.num_builds == 3, "another cell"
    near.update(positions, cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 4, "another periodicity"
    near.update(positions[:2], cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 5, "another number of atoms"
    near.reset()
    near.update(positions[:2], cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 6
    assert near.num_updates == 7


def test_atoms_that_flew_off_cost_nothing(rng: np.random.Generator) -> None:
    """vesin's grid over such an extent ends the process."""
    positions = np.concatenate(
        [rng.uniform(0.0, 6.0, (8, 3)), [[1.0, 2e6, 5e7], [1.0, 2e6, 5e7 + 1]]]
    )
    for pbc in PBC[1:]:
        periodic = np.array(pbc, dtype=bool)
        cell = np.diag([6.5, 7.0, 7.5])
        edges = SkinNeighborList(R_MAX, 0.4, CPU).update(positions, cell, periodic)
        near = SkinNeighborList(R_MAX, 0.4, CPU).update(positions[:8], cell, periodic)
        rows = as_rows(edges)
        of_the_rest = rows[(rows[:, 0] < 8) & (rows[:, 1] < 8)]
        np.testing.assert_array_equal(of_the_rest, as_rows(near))
        assert ((rows[:, 0] >= 8) & (rows[:, 1] >= 8)).sum() >= 2


def test_order_without_packed_keys(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    from mdcg.calculators import neighbors

    sender, receiver = rng.integers(0, 9, (2, 400))
    cells = rng.integers(-2, 3, (400, 3)).astype(np.int32)
    # no two edges tie, or the order is not defined
    _, first = np.unique(np.column_stack([receiver, sender, cells]), axis=0, return_index=True)
    sender, receiver, cells = sender[first], receiver[first], cells[first]
    packed = neighbors._canonical_order(sender, receiver, cells, 9)
    monkeypatch.setattr(neighbors.np, "prod", lambda values: np.inf)
    np.testing.assert_array_equal(neighbors._canonical_order(sender, receiver, cells, 9), packed)


@pytest.mark.parametrize(
    ("positions", "cell", "pbc", "message"),
    [
        ([[0, 0, 0], [np.nan, 0, 0]], np.eye(3) * 9, (1, 1, 1), "1 of 2 atoms .* atom 1 at"),
        ([[0, 0, np.inf]], np.eye(3) * 9, (0, 0, 0), "no usable position"),
        ([[0, 0, 1e9]], np.eye(3) * 9, (0, 0, 0), "finite numbers below 1e"),
        ([[0, 0, 0]], np.zeros((3, 3)), (1, 0, 1), "periodic along ac, where its cell vector"),
        ([[0, 0, 0]], [[5, 0, 0], [0, 5, 0], [5, 5, 0]], (1, 1, 1), "lie in one plane"),
        (
            [[0, 0, 0]],
            [[5, 0, 0], [5, 0, 0], [0, 0, 1]],
            (1, 1, 0),
            "one plane or on one line",
        ),
        ([[0, 0, 0]], [[5, 0, 0], [0, np.inf, 0], [0, 0, 5]], (1, 1, 1), "not finite"),
        ([[0, 0, 9e7]], np.diag([5, 5, 0.01]), (1, 1, 1), "wrap them first"),
        (
            [[0, 0, 0], [1, 1, 1], [1, 1, 1]],
            np.eye(3) * 9,
            (0, 0, 0),
            "atoms 1 and 2 are at the same",
        ),
        ([[0, 0, 0], [9, 0, 0]], np.eye(3) * 9, (1, 1, 1), "atoms 0 and 1 are at"),
    ],
)
def test_unusable_geometry(
    positions: list[list[float]], cell: np.ndarray, pbc: tuple[int, ...], message: str
) -> None:
    near = SkinNeighborList(R_MAX, 0.5, CPU)
    with pytest.raises(InputError, match=message):
        near.update(
            np.array(positions, dtype=float), np.array(cell, dtype=float), np.array(pbc, dtype=bool)
        )
