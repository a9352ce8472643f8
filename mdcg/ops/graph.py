"""Edge orders of a graph, made once and remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from .. import _core

__all__ = ["Graph", "GraphCache", "Pairs", "graph_of"]

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
_MAX_GRAPHS = 8
_MAX_EDGES = 1 << 21


class _HasEdges(Protocol):
    @property
    def num_edges(self) -> int: ...


G = TypeVar("G", bound=_HasEdges)


class GraphCache(Generic[G]):
    """The graphs that were used last, on CPUs or on CUDA devices."""

    def __init__(self, max_edges: int) -> None:
        self._graphs: OrderedDict[Hashable, G] = OrderedDict()
        self._lock = threading.Lock()
        self._max_edges = max_edges  # of all graphs but the newest

    def __len__(self) -> int:
        return len(self._graphs)

    def newest_first(self) -> list[tuple[Hashable, G]]:
        """Return keys and graphs."""
        with self._lock:
            return list(reversed(self._graphs.items()))

    def get(self, key: Hashable) -> G | None:
        """Return the graph of a key, which is then the newest."""
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
            return self._graphs.get(key)

    def add(self, key: Hashable, graph: G) -> None:
        """Remember a graph, and forget the oldest beyond the limits."""
        with self._lock:
            self._graphs[key] = graph
            others = sum(g.num_edges for g in self._graphs.values()) - graph.num_edges
            while len(self._graphs) > 1 and (
                len(self._graphs) > _MAX_GRAPHS or others > self._max_edges
            ):
                others -= self._graphs.popitem(last=False)[1].num_edges


class Order:
    """Addresses and lengths of arrays of csrc/core/edges.hpp and csrc/core/pairs.hpp."""

    def __init__(self, names: str, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self._arrays = arrays  # kept alive
        found = dict(zip(names.split(), arrays, strict=True))
        self.addresses = {n: int(a.__array_interface__["data"][0]) for n, a in found.items()}
        self.lengths = {name: len(array) for name, array in found.items()}


class Graph:
    """Orders of one edge list, given as ``_core.Edges`` takes it."""

    def __init__(self, edges: tuple[int, int, int, int, int, int]) -> None:
        _, _, self.num_edges, _, self.num_senders, self.num_receivers = edges
        self._edges = _core.Edges(*edges, EDGES_PER_TASK)
        self.same = self._edges.same  # compares the contents
        self.by_receiver = Order("order sender row_ptr task_ptr", self._edges.by_receiver())
        self._blocks: dict[int, Order] = {}
        self._pairs: Pairs | None = None

    def block_size(self, senders_per_block: int) -> int:
        """Return how many nodes make a block."""
        return max(1, min(senders_per_block, -(-self.num_senders // MIN_BLOCKS)))

    def blocks(self, senders_per_block: int, shared_weights: bool) -> tuple[int, Order]:
        """Return the size of a block of senders, and the order for the backward passes.

        The size depends on the graph and the plan alone, so results do not depend on the threads.
        """
        size = self.block_size(senders_per_block)
        if shared_weights:
            size = max(size, -(-self.num_senders // MAX_SHARED_BLOCKS))
        if size not in self._blocks:
            names = "order sender receiver block_ptr tiles round_ptr"
            self._blocks[size] = Order(names, self._edges.by_block(size))
        return size, self._blocks[size]

    def pairs(self, directions: torch.Tensor, features: torch.Tensor) -> Pairs:
        """Return which edges are the two directions of one edge, by their values.

        The last answer is checked against the values first; it holds in most steps of molecular
        dynamics.

        The vectors `directions` of shape (n_edges, 3) are opposite for the two directions; they may
        be columns of a larger matrix. The `features` of shape (n_edges, n_features) are values of
        the same type, equal for the two directions.
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


class Pairs:
    """Edges that share a row of weights, because they are the two directions of one edge."""

    def __init__(self, edges: _core.Edges, pairing: _core.Pairing) -> None:
        self.pairing = pairing
        self._edges = edges
        # ordinary tensors, whatever mode the first caller is in
        with torch.inference_mode(False):
            # row of every edge (int32), and the two edges of every row (int64), which are the same
            # edge if it has no partner
            self.row, self.first, self.second = (torch.from_numpy(a) for a in pairing.rows())
            alone = self.first == self.second
            # shape (n_rows, 1): which rows have one edge only; None if all have two
            self.single = alone.unsqueeze(1) if bool(alone.any()) else None
        self._tiles: dict[int, Order] = {}

    def __len__(self) -> int:
        return int(self.first.shape[0])

    @property
    def pay(self) -> bool:
        """Whether there are enough pairs to gain from."""
        return len(self) < _PAYS * len(self.row)

    def tiles(self, size: int) -> Order:
        """Return the order for the backward pass; `size` nodes make a block."""
        if size not in self._tiles:
            arrays = self._edges.by_pair(self.pairing, size)
            self._tiles[size] = Order("order sender receiver tiles round_ptr", arrays)
        return self._tiles[size]


_graphs: GraphCache[Graph] = GraphCache(_MAX_EDGES)


def graph_of(
    sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
) -> Graph:
    """Return the orders of an edge list, from memory if one of the last few lists equals it.

    Lists are compared by content, so an index tensor changed in place is never mistaken for the old
    one. An index out of range is a ValueError.
    """
    sender, receiver = sender.contiguous(), receiver.contiguous()
    addresses = sender.data_ptr(), receiver.data_ptr()
    edges = *addresses, sender.shape[0], sender.element_size(), num_senders, num_receivers
    for key, graph in _graphs.newest_first():
        if graph.same(*edges):
            _graphs.get(key)
            return graph
    graph = Graph(edges)
    _graphs.add(id(graph), graph)
    return graph
