"""Neighbour list with a skin, whose edges do not depend on the skin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from ase.calculators.calculator import InputError
from vesin import NeighborList

__all__ = ["Edges", "SkinNeighborList", "check_geometry"]

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]

# A float64 beyond this resolves no more than 1e-8 Å: such a coordinate is a fault, not a place.
_MAX_COORDINATE = 1e8  # Å
# The list is built this much wider, so that its own rounding at the border cannot lose an edge.
_BORDER = 1e-6  # Å


@dataclass(frozen=True)
class Edges:
    """Directed edges within the cutoff, sorted by receiver, then sender, then cell shift.

    The vector of edge e is ``positions[receiver] - positions[sender] + shifts[e]``.

    Attributes
    ----------
    edge_index : torch.Tensor, shape (2, n_edges), int64
        Sender in row 0, receiver in row 1 (the convention of MACE).
    unit_shifts : torch.Tensor, shape (n_edges, 3), float64
        Cell shift in units of the cell vectors; zero along directions that are not periodic.
    shifts : torch.Tensor, shape (n_edges, 3), float64
        ``unit_shifts @ cell``, in Å.
    """

    edge_index: torch.Tensor
    unit_shifts: torch.Tensor
    shifts: torch.Tensor

    def equals(self, other: Edges) -> bool:
        """Whether the other edges are the same, in the same order."""
        return all(
            torch.equal(mine, theirs)
            for mine, theirs in (
                (self.edge_index, other.edge_index),
                (self.unit_shifts, other.unit_shifts),
                (self.shifts, other.shifts),
            )
        )


def check_geometry(positions: FloatArray, cell: FloatArray, pbc: BoolArray) -> None:
    """Raise ``InputError`` for positions or a cell that no neighbour list can be made of.

    Parameters
    ----------
    positions : numpy.ndarray, shape (n_nodes, 3)
        In Å.
    cell : numpy.ndarray, shape (3, 3)
        Rows are cell vectors, in Å; rows along directions that are not periodic are not looked at.
    pbc : numpy.ndarray, shape (3,), bool
        Periodic directions.
    """
    bad = ~(np.abs(positions) <= _MAX_COORDINATE).all(axis=1)  # also catches nan
    if bad.any():
        atom = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{int(bad.sum())} of {len(positions)} atoms have no usable position (the first is "
            f"atom {atom} at {positions[atom].tolist()} Å); expected finite numbers below "
            f"{_MAX_COORDINATE:.0e} Å: did an earlier step blow up?"
        )
    vectors = cell[pbc]
    if len(vectors) == 0:
        return
    if not np.isfinite(vectors).all():
        raise InputError(f"the cell {cell.tolist()} has entries that are not finite numbers")
    lengths = np.linalg.norm(vectors, axis=1)
    if not lengths.all():
        axes = "".join("abc"[k] for k in np.flatnonzero(pbc)[lengths == 0.0])
        raise InputError(
            f"the system is periodic along {axes}, where its cell vector is zero; set a cell "
            "(atoms.cell) or switch that direction off (atoms.pbc)"
        )
    heights = np.linalg.svd(vectors / lengths[:, None], compute_uv=False)
    if heights[-1] < 1e-8:
        raise InputError(
            f"the periodic cell vectors {vectors.tolist()} lie in one plane or on one line; "
            "expected linearly independent ones"
        )
    if not (np.abs(positions @ np.linalg.pinv(vectors)) < 2.0**30).all():
        raise InputError("positions are more than 2^30 cells away from the cell; wrap them first")


class SkinNeighborList:
    """All edges shorter than a cutoff, from a longer list that is reused while atoms move little.

    The longer list holds edges up to ``cutoff + skin`` and is valid until an atom has moved by more
    than ``skin / 2``. It is sorted once, and every update picks from it, in that order, the edges
    that are shorter than the cutoff now. So the edges and their order are those of a fresh list,
    whatever the skin.

    Parameters
    ----------
    cutoff : float
        In Å; edges of exactly this length or more are left out.
    skin : float
        In Å; 0 rebuilds at every move.
    device : torch.device
        Where the edges are wanted.
    """

    def __init__(self, cutoff: float, skin: float, device: torch.device) -> None:
        self.cutoff = float(cutoff)
        self.skin = float(skin)
        self.device = device
        self.num_builds = 0
        self.num_updates = 0
        self._built_for: tuple[FloatArray, FloatArray, BoolArray] | None = None
        self._list: Edges | None = None
        self._picked: tuple[torch.Tensor, Edges] | None = None

    def update(self, positions: FloatArray, cell: FloatArray, pbc: BoolArray) -> Edges:
        """Return the edges of the given geometry.

        Parameters
        ----------
        positions : numpy.ndarray, shape (n_nodes, 3), float64
            In Å.
        cell : numpy.ndarray, shape (3, 3), float64
            Rows are cell vectors, in Å.
        pbc : numpy.ndarray, shape (3,), bool
            Periodic directions.

        Returns
        -------
        Edges
            The same tensors as last time if no edge came or went.

        Raises
        ------
        ase.calculators.calculator.InputError
            Positions or cell are unusable, or two atoms sit on each other.
        """
        self.num_updates += 1
        check_geometry(positions, cell, pbc)
        if not self._is_valid(positions, cell, pbc):
            self._build(positions, cell, pbc)
        full = self._list
        assert full is not None
        where = torch.as_tensor(positions, device=self.device)
        vectors = where[full.edge_index[1]] - where[full.edge_index[0]] + full.shifts
        squares = (vectors * vectors).sum(dim=1)
        if squares.numel() and not bool(squares.min() > 0.0):
            self._raise_coincident(full, squares)
        kept = torch.nonzero(squares < self.cutoff**2).flatten()
        if self._picked is not None and torch.equal(kept, self._picked[0]):
            return self._picked[1]
        edges = Edges(
            full.edge_index.index_select(1, kept),
            full.unit_shifts.index_select(0, kept),
            full.shifts.index_select(0, kept),
        )
        self._picked = (kept, edges)
        return edges

    def reset(self) -> None:
        """Forget the list; the next update builds one."""
        self._built_for = self._list = self._picked = None

    def _is_valid(self, positions: FloatArray, cell: FloatArray, pbc: BoolArray) -> bool:
        if self._built_for is None:
            return False
        old_positions, old_cell, old_pbc = self._built_for
        if positions.shape != old_positions.shape or not np.array_equal(pbc, old_pbc):
            return False
        if not np.array_equal(cell[pbc], old_cell[pbc]):
            return False
        moved = positions - old_positions
        return not (np.einsum("ij,ij->i", moved, moved) > (0.5 * self.skin) ** 2).any()

    def _build(self, positions: FloatArray, cell: FloatArray, pbc: BoolArray) -> None:
        self.num_builds += 1
        reach = self.cutoff + self.skin + _BORDER
        compact, box = _bounded_geometry(positions, cell, pbc, reach)
        sender, receiver, cells = NeighborList(cutoff=reach, full_list=True).compute(
            points=compact, box=box, periodic=pbc, quantities="ijS"
        )
        sender, receiver = sender.astype(np.int64), receiver.astype(np.int64)
        order = _canonical_order(sender, receiver, cells, len(positions))
        unit_shifts = cells[order].astype(np.float64)
        used = np.where(pbc[:, None], cell, 0.0)  # others may hold anything, even nan
        # not a matrix product: its last bits may depend on the number of edges
        shifts = sum(unit_shifts[:, k : k + 1] * used[k] for k in range(3))
        self._list = Edges(
            torch.from_numpy(np.stack([sender[order], receiver[order]])).to(self.device),
            torch.from_numpy(unit_shifts).to(self.device),
            torch.from_numpy(np.asarray(shifts)).to(self.device),
        )
        self._picked = None
        self._built_for = (positions.copy(), cell.copy(), pbc.copy())

    @staticmethod
    def _raise_coincident(full: Edges, squares: torch.Tensor) -> None:
        first, second = sorted(int(k) for k in full.edge_index[:, int(squares.argmin())])
        raise InputError(
            f"atoms {first} and {second} are at the same position; every pair needs a distance "
            "above 0"
        )


def _canonical_order(
    sender: IntArray, receiver: IntArray, cells: npt.NDArray[np.int32], n_nodes: int
) -> IntArray:
    """Return the permutation that sorts edges by receiver, sender, shift; no two edges tie."""
    if len(sender) == 0:
        return np.zeros(0, dtype=np.int64)
    low = cells.min(axis=0).astype(np.int64)
    span = cells.max(axis=0).astype(np.int64) - low + 1
    radices = [n_nodes, n_nodes, *span.tolist()]
    if np.prod([float(radix) for radix in radices]) < 2.0**62:
        key = receiver * n_nodes + sender  # one integer per edge sorts ten times faster
        for axis in range(3):
            key = key * span[axis] + (cells[:, axis] - low[axis])
        return np.argsort(key)
    return np.lexsort((cells[:, 2], cells[:, 1], cells[:, 0], sender, receiver))


def _bounded_geometry(
    positions: FloatArray, cell: FloatArray, pbc: BoolArray, reach: float
) -> tuple[FloatArray, FloatArray]:
    """Return positions and a regular box with the same pairs within `reach`, but no wide gaps.

    vesin lays a grid over the extent of the system and crashes where that is huge: a slab with one
    atom that flew off. Only gaps wider than `reach` along directions that are not periodic shrink.
    """
    box = np.array(cell, dtype=np.float64)
    free = np.flatnonzero(~pbc)
    if len(free) == 0:
        return np.ascontiguousarray(positions), box
    # orthonormal directions, perpendicular to all periodic cell vectors
    _, _, basis = np.linalg.svd(box[pbc] if pbc.any() else np.zeros((1, 3)))
    compact = positions.copy()
    for axis, normal in zip(free, basis[int(pbc.sum()) :], strict=True):
        height = positions @ normal
        order = np.argsort(height)
        gaps = np.diff(height[order])
        excess = np.concatenate([[0.0], np.cumsum(np.maximum(gaps - 1.01 * reach, 0.0))])
        excess = excess[: len(positions)]
        compact[order] -= excess[:, None] * normal
        extent = float(np.ptp(height[order] - excess)) if len(positions) else 0.0
        box[axis] = normal * (extent + 1.01 * reach)
    return compact, box
