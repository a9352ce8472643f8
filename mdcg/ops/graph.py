"""Edge orders of a graph, made once and remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import numpy as np
import torch

from .. import _core

__all__ = ["Graph", "Pairs", "graph_of"]

# Smallest number of edges of a forward task, which takes whole receivers.
EDGES_PER_TASK = 256

# Smallest number of blocks of senders in a backward pass, if there are that many senders.
MIN_BLOCKS = 16

# Largest number of blocks with shared weights, whose gradients are summed per block first.
MAX_SHARED_BLOCKS = 64

# Pairs save time if the number of rows is below this fraction of the number of edges.
_PAYS = 0.75

# Limits of the graphs remembered: their number, and the edges of all but the newest (36 bytes
# each), because molecular dynamics makes a new list every few steps.
_REMEMBERED = 8
_REMEMBERED_EDGES = 1 << 21


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


class Graph:
    """Orders of one edge list.

    Attributes
    ----------
    order, sender, row_ptr, task_ptr : int
        Addresses of the receiver order (csrc/core/edges.hpp).
    num_tasks : int
    """

    def __init__(
        self,
        sender: torch.Tensor,
        receiver: torch.Tensor,
        num_senders: int,
        num_receivers: int,
    ) -> None:
        self.num_edges = sender.shape[0]
        self.num_senders = num_senders
        self.num_receivers = num_receivers
        self.itemsize = sender.element_size()
        self._edges = _core.Edges(
            sender.data_ptr(),
            receiver.data_ptr(),
            self.num_edges,
            self.itemsize,
            num_senders,
            num_receivers,
            EDGES_PER_TASK,
        )
        arrays = self._edges.by_receiver()
        self._arrays: list[Any] = [arrays]
        self.order, self.sender, self.row_ptr, self.task_ptr = (_address(a) for a in arrays)
        self.num_tasks = len(arrays[3]) - 1
        self._blocks: dict[int, Blocks] = {}
        self._pairs: Pairs | None = None

    def same(
        self,
        sender: torch.Tensor,
        receiver: torch.Tensor,
        num_senders: int,
        num_receivers: int,
    ) -> bool:
        """Return whether this graph has exactly these edges (the contents are compared)."""
        return self._edges.same(
            sender.data_ptr(),
            receiver.data_ptr(),
            sender.shape[0],
            sender.element_size(),
            num_senders,
            num_receivers,
        )

    def block_size(self, senders_per_block: int) -> int:
        """Return how many nodes make a block."""
        return max(1, min(senders_per_block, -(-self.num_senders // MIN_BLOCKS)))

    def blocks(self, senders_per_block: int, shared_weights: bool) -> Blocks:
        """Return the block order for the backward passes.

        Its block size depends on the graph and the plan alone, so results do not depend on the
        threads.
        """
        size = self.block_size(senders_per_block)
        if shared_weights:
            size = max(size, -(-self.num_senders // MAX_SHARED_BLOCKS))
        if size not in self._blocks:
            self._blocks[size] = Blocks(self._edges, size)
        return self._blocks[size]

    def pairs(self, directions: torch.Tensor, features: torch.Tensor) -> Pairs:
        """Return which edges are the two directions of one edge, by their values.

        The last answer is checked against the values first; it holds in most steps of molecular
        dynamics.

        Parameters
        ----------
        directions : torch.Tensor, shape (n_edges, 3)
            Vectors, opposite for the two directions; they may be columns of a larger matrix.
        features : torch.Tensor, shape (n_edges, n_features), contiguous
            Values of the same type, equal for the two directions.
        """
        if directions.stride(1) != 1 or not features.is_contiguous():
            raise ValueError("directions and features must have contiguous rows")
        values = (
            directions.data_ptr(),
            directions.stride(0),
            features.data_ptr(),
            features.shape[1],
            features.element_size(),
        )
        found = self._pairs
        # with few pairs, the search is repeated: other values may have more
        if found is None or not found.pay or not found.pairing.holds(*values):
            found = self._pairs = Pairs(self._edges, self._edges.pairs(*values))
        return found


class Blocks:
    """Edges by blocks of senders: addresses of ``BlockOrder``'s arrays (csrc/core/edges.hpp)."""

    def __init__(self, edges: _core.Edges, size: int) -> None:
        self.size = size
        arrays = edges.by_block(size)
        self._arrays = arrays
        self.order, self.sender, self.receiver, self.block_ptr, self.tiles, self.round_ptr = (
            _address(a) for a in arrays
        )
        self.num_blocks = len(arrays[3]) - 1
        self.num_rounds = len(arrays[5]) - 1


class Pairs:
    """Edges that share a row of weights, because they are the two directions of one edge.

    Attributes
    ----------
    row : torch.Tensor of int32, shape (n_edges,)
        Row of every edge.
    first, second : torch.Tensor of int64, shape (n_rows,)
        The two edges of every row; both are the same edge if it has no partner.
    single : torch.Tensor of bool, shape (n_rows, 1), or None
        Which rows have one edge only; None if all have two.
    """

    def __init__(self, edges: _core.Edges, pairing: _core.Pairing) -> None:
        self.pairing = pairing
        self._edges = edges
        # ordinary tensors, whatever mode the first caller is in
        with torch.inference_mode(False):
            self.row, self.first, self.second = (torch.from_numpy(a) for a in pairing.rows())
            alone = self.first == self.second
            self.single = alone.unsqueeze(1) if bool(alone.any()) else None
        self._tiles: dict[int, PairTiles] = {}

    def __len__(self) -> int:
        return int(self.first.shape[0])

    @property
    def pay(self) -> bool:
        """Whether there are enough pairs to gain from."""
        return len(self) < _PAYS * len(self.row)

    def tiles(self, size: int) -> PairTiles:
        """Return the order for the backward pass; `size` nodes make a block."""
        if size not in self._tiles:
            self._tiles[size] = PairTiles(self._edges, self.pairing, size)
        return self._tiles[size]


class PairTiles:
    """Addresses of ``PairOrder``'s arrays (csrc/core/pairs.hpp)."""

    def __init__(self, edges: _core.Edges, pairing: _core.Pairing, size: int) -> None:
        arrays = edges.by_pair(pairing, size)
        self._arrays = arrays
        self.order, self.sender, self.receiver, self.tiles, self.round_ptr = (
            _address(a) for a in arrays
        )
        self.num_rounds = len(arrays[4]) - 1


_graphs: OrderedDict[int, Graph] = OrderedDict()
_lock = threading.Lock()


def graph_of(
    sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
) -> Graph:
    """Return the orders of an edge list, from memory if one of the last few lists equals it.

    Lists are compared by content, so an index tensor changed in place is never mistaken for the old
    one.

    Raises
    ------
    ValueError
        An index is out of range.
    """
    with _lock:
        candidates = list(reversed(_graphs.values()))
    for graph in candidates:
        if graph.same(sender, receiver, num_senders, num_receivers):
            with _lock:
                if id(graph) in _graphs:
                    _graphs.move_to_end(id(graph))
            return graph
    graph = Graph(sender, receiver, num_senders, num_receivers)
    with _lock:
        _graphs[id(graph)] = graph
        while len(_graphs) > 1 and (
            len(_graphs) > _REMEMBERED
            or sum(g.num_edges for g in _graphs.values()) - graph.num_edges > _REMEMBERED_EDGES
        ):
            _graphs.popitem(last=False)
    return graph
