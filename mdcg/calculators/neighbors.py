"""The engine's neighbour list as tensors, whose edges do not depend on the skin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from ase.calculators.calculator import InputError

from .. import _core

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Edges:
    """Directed edges within the cutoff, sorted by receiver, then sender, then cell shift.

    The vector of edge e is ``positions[receiver] - positions[sender] + shifts[e]``.
    """

    edge_index: torch.Tensor  # [2, n_edges] int64: senders, receivers
    unit_shifts: torch.Tensor  # [n_edges, 3] float64, in units of the cell vectors
    shifts: torch.Tensor  # [n_edges, 3] float64, unit_shifts @ cell in Å

    def select(self, kept: torch.Tensor) -> Edges:
        """Return the edges with the given indices."""
        return Edges(*(part.index_select(dim, kept) for part, dim in self._parts()))

    def equals(self, other: Edges) -> bool:
        """Whether the other edges are the same, in the same order."""
        pairs = zip(self._parts(), other._parts(), strict=True)
        return all(torch.equal(mine, theirs) for (mine, _), (theirs, _) in pairs)

    def _parts(self) -> tuple[tuple[torch.Tensor, int], ...]:
        """Return the tensors and the dimension in which edges are counted."""
        return (self.edge_index, 1), (self.unit_shifts, 0), (self.shifts, 0)


class SkinNeighborList:
    """All edges shorter than a cutoff, from a longer list that is reused while atoms move little.

    The longer list, made by the engine, contains edges up to ``cutoff + skin``. It is valid while
    no other pair can be closer than the cutoff. Every update selects the edges that are now shorter
    than the cutoff and keeps their order, so edges and order do not depend on the skin.
    """

    def __init__(self, cutoff: float, skin: float, device: torch.device) -> None:
        self.cutoff = float(cutoff)
        self.skin = float(skin)
        self.device = device
        self._near = _core.NeighborList(self.cutoff, self.skin)
        self._list: Edges | None = None
        self._picked: tuple[torch.Tensor, Edges] | None = None

    @property
    def num_builds(self) -> int:
        """Number of lists that were built."""
        return self._near.num_builds

    @property
    def num_updates(self) -> int:
        """Number of geometries that were passed in."""
        return self._near.num_updates

    def update(self, positions: FloatArray, cell: FloatArray, pbc: BoolArray) -> Edges:
        """Return the edges of a geometry in ASE's conventions.

        These are the same tensors as last time if the set of edges is unchanged. Raises
        ``InputError`` if positions or cell are unusable, or if two atoms are at the same place.
        """
        try:
            change = self._near.update(positions, cell, pbc.tolist())
        except _core.GeometryError as error:
            self._list = self._picked = None
            raise InputError(str(error)) from None
        full = self._list
        if full is None or change != "none":
            full = self._list = self._as_tensors()
            self._picked = None
        where = torch.as_tensor(positions, device=self.device)
        vectors = where[full.edge_index[1]] - where[full.edge_index[0]] + full.shifts
        squares = (vectors * vectors).sum(dim=1)
        if squares.numel() and not bool(squares.min() > 0.0):
            self._raise_coincident(full, squares)
        kept = torch.nonzero(squares < self.cutoff**2).flatten()
        if self._picked is not None and torch.equal(kept, self._picked[0]):
            return self._picked[1]
        edges = full.select(kept)
        self._picked = (kept, edges)
        return edges

    def reset(self) -> None:
        """Drop the list, so that the next update builds one."""
        self._near.reset()

    def _as_tensors(self) -> Edges:
        near = self._near
        index = np.stack([near.sender, near.receiver]).astype(np.int64)
        return Edges(
            torch.from_numpy(index).to(self.device),
            torch.from_numpy(near.cell_shifts().astype(np.float64)).to(self.device),
            torch.from_numpy(near.shifts).to(self.device),
        )

    @staticmethod
    def _raise_coincident(full: Edges, squares: torch.Tensor) -> None:
        first, second = sorted(int(k) for k in full.edge_index[:, int(squares.argmin())])
        raise InputError(
            f"atoms {first} and {second} are at the same place, expected a distance between them"
        )
