"""The engine's neighbour list as tensors: what it adds to tests/engine/test_neighbors.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase.cell import Cell

from mdcg.calculators import SkinNeighborList

from ..engine.cells import CELLS, PBC
from ..engine.test_neighbors import by_hand

CPU = torch.device("cpu")
R_MAX = 3.7


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
    used = np.array(Cell(np.where(periodic[:, None], cell, 0.0)).complete())
    np.testing.assert_array_equal(rows, by_hand(positions, used, periodic, R_MAX, np.inf))
    np.testing.assert_allclose(
        edges.shifts, edges.unit_shifts.numpy() @ np.where(periodic[:, None], cell, 0.0), atol=1e-12
    )


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
    shifts = near.update(moved, cell, pbc).shifts
    assert torch.equal(near.update(moved, cell * 1.001, pbc).shifts, shifts * 1.001)
    assert near.num_builds == 2, "another cell changes the shifts alone"
    near.update(positions, cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 3, "another periodicity"
    near.update(positions[:2], cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 4, "another number of atoms"
    near.reset()
    near.update(positions[:2], cell * 1.001, np.array([True, True, False]))
    assert near.num_builds == 5
    assert near.num_updates == 8
