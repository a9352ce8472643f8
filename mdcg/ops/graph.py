"""Orders of edges of graphs on CPUs and CUDA devices, made once per edge list and remembered."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from .. import _core
from ..errors import UnsupportedProblemError
from .kernels import current_stream

# Fewest edges of a forward task, which has whole receivers.
EDGES_PER_TASK = 256

# Fewest blocks of senders in a backward pass, if there are so many senders.
MIN_BLOCKS = 16

# Most blocks with shared weights, whose gradients are first summed per block.
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
Indices = np.ndarray[Any, Any]


class GraphCache(Generic[G]):
    """The graphs that were used last, on CPUs or on CUDA devices."""

    def __init__(self, max_edges: int) -> None:
        self._graphs: OrderedDict[Hashable, G] = OrderedDict()
        self._lock = threading.Lock()
        self._max_edges = max_edges  # in all graphs except the newest

    def __len__(self) -> int:
        return len(self._graphs)

    def newest_first(self) -> list[tuple[Hashable, G]]:
        """Return keys and graphs."""
        with self._lock:
            return list(reversed(self._graphs.items()))

    def get(self, key: Hashable) -> G | None:
        """Return the graph of a key, and make it the newest."""
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
            return self._graphs.get(key)

    def add(self, key: Hashable, graph: G) -> None:
        """Remember a graph, and forget the oldest graphs if there are too many."""
        with self._lock:
            self._graphs[key] = graph
            others = sum(g.num_edges for g in self._graphs.values()) - graph.num_edges
            while len(self._graphs) > 1 and (
                len(self._graphs) > _MAX_GRAPHS or others > self._max_edges
            ):
                others -= self._graphs.popitem(last=False)[1].num_edges


class Order:
    """Addresses and lengths of arrays of csrc/core/edges.hpp and csrc/core/pairs.hpp."""

    def __init__(self, names: str, arrays: Sequence[Indices]) -> None:
        self._arrays = arrays  # kept alive for the addresses
        found = dict(zip(names.split(), arrays, strict=True))
        self.addresses = {n: int(a.__array_interface__["data"][0]) for n, a in found.items()}
        self.lengths = {name: len(array) for name, array in found.items()}


class Graph:
    """Orders of one edge list."""

    def __init__(
        self, sender: Indices, receiver: Indices, num_senders: int, num_receivers: int
    ) -> None:
        self.num_edges, self.num_senders, self.num_receivers = (
            len(sender),
            num_senders,
            num_receivers,
        )
        self._edges = _core.Edges(sender, receiver, num_senders, num_receivers, EDGES_PER_TASK)
        self.same = self._edges.same  # compares the contents
        self.by_receiver = Order("order sender row_ptr task_ptr", self._edges.by_receiver())
        self._blocks: dict[int, Order] = {}
        self._pairs: Pairs | None = None

    def block_size(self, senders_per_block: int) -> int:
        """Return the number of nodes in a block."""
        return max(1, min(senders_per_block, -(-self.num_senders // MIN_BLOCKS)))

    def blocks(self, senders_per_block: int, shared_weights: bool) -> tuple[int, Order]:
        """Return the size of a block of senders, and the order for the backward passes.

        The size depends only on the graph and the plan, so results do not depend on the threads.
        """
        size = self.block_size(senders_per_block)
        if shared_weights:
            size = max(size, -(-self.num_senders // MAX_SHARED_BLOCKS))
        if size not in self._blocks:
            names = "order sender receiver block_ptr tiles round_ptr"
            self._blocks[size] = Order(names, self._edges.by_block(size))
        return size, self._blocks[size]

    def pairs(self, directions: torch.Tensor, features: torch.Tensor) -> Pairs:
        """Find edges that are the two directions of one edge, by their values.

        The last result is checked first. It is still right in most steps of molecular dynamics.

        The vectors `directions` of shape (n_edges, 3) are opposite for the two directions; they may
        be columns of a larger matrix. The `features` of shape (n_edges, n_features) are values of
        the same type, equal for the two directions.
        """
        if directions.stride(1) != 1 or not features.is_contiguous():
            raise ValueError("directions and features must have contiguous rows")
        values = directions.numpy(), features.numpy()
        found = self._pairs
        # If few pairs were found, other values may have more, so the search is repeated.
        if found is None or not found.pay or not found.pairing.holds(*values):
            found = self._pairs = Pairs(self._edges, self._edges.pairs(*values))
        return found


class Pairs:
    """Edges that share a row of weights, because they are the two directions of one edge."""

    def __init__(self, edges: _core.Edges, pairing: _core.Pairing) -> None:
        self.pairing = pairing
        self._edges = edges
        # ordinary tensors, even if the first caller is in inference mode
        with torch.inference_mode(False):
            # row of every edge (int32), and the two edges of every row (int64); an edge without a
            # partner is both
            self.row, self.first, self.second = (torch.from_numpy(a) for a in pairing.rows())
            alone = self.first == self.second
            # shape (n_rows, 1): which rows have one edge only; None if all have two
            self.single = alone.unsqueeze(1) if bool(alone.any()) else None
        self._tiles: dict[int, Order] = {}

    def __len__(self) -> int:
        return int(self.first.shape[0])

    @property
    def pay(self) -> bool:
        """Whether there are enough pairs to save time."""
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

    Lists are compared by content, so an index tensor may change in place. An index out of range
    raises ValueError.
    """
    indices = sender.contiguous().numpy(), receiver.contiguous().numpy()
    edges = *indices, num_senders, num_receivers
    for key, graph in _graphs.newest_first():
        if graph.same(*edges):
            _graphs.get(key)
            return graph
    graph = Graph(*edges)
    _graphs.add(id(graph), graph)
    return graph


# Most edges (about 28 bytes each) in the remembered lists, without the newest.
_REMEMBERED_EDGES = 1 << 25

# Kernels count edges in 32 bits.
_MAX_CUDA_EDGES = 2**31 - 64

# Protects the orders by sender, which are made on first use.
_lock = threading.Lock()


class _Ordered:
    """Tensors that are made on one stream and used on others."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self._made_on = torch.cuda.current_stream(tensors[0].device)
        self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made.record(self._made_on)

    def wait(self) -> None:
        """Make the current stream wait for the stream that made the tensors."""
        device = self._tensors[0].device
        if current_stream(device.index) != self._made_on.cuda_stream:
            current = torch.cuda.current_stream(device)
            current.wait_event(self._made)
            for tensor in self._tensors:
                tensor.record_stream(current)


class SenderOrder(_Ordered):
    """Edges by sender, as int32.

    ``place[e]`` is the index in sender order of edge e of the receiver order. ``row_ptr`` is where
    each sender's edges start.
    """

    def __init__(self, sender: torch.Tensor, num_senders: int) -> None:
        in_order, edges = torch.sort(sender, stable=True)
        self.place = torch.empty_like(sender)
        self.place[edges] = torch.arange(len(edges), dtype=sender.dtype, device=sender.device)
        self.row_ptr = _bounds(in_order, num_senders)
        super().__init__(self.place, self.row_ptr)


def _bounds(in_order: torch.Tensor, rows: int) -> torch.Tensor:
    numbers = torch.arange(rows + 1, dtype=in_order.dtype, device=in_order.device)
    return torch.searchsorted(in_order, numbers, out_int32=True)


class CudaGraph(_Ordered):
    """Edges by receiver, as int32.

    `order` are the edges in receiver order, `sender` their senders, and `row_ptr` where each
    receiver's edges start.
    """

    def __init__(
        self, sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
    ) -> None:
        self.num_receivers = num_receivers
        self._num_senders = num_senders
        sorted_receiver, order = torch.sort(receiver, stable=True)
        self.order = order.to(torch.int32)
        self.sender = sender.to(torch.int32)[order]
        self.row_ptr = _bounds(sorted_receiver, num_receivers)
        self._indices = (sender, receiver)  # kept alive, because the key contains their addresses
        self._by_sender: SenderOrder | None = None
        super().__init__(self.order, self.sender, self.row_ptr)

    @property
    def num_edges(self) -> int:
        """Length of the edge list."""
        return self.order.shape[0]

    def by_sender(self) -> SenderOrder:
        """Return the order in which deterministic gradients of node features are summed."""
        with _lock:
            if self._by_sender is None:
                self._by_sender = SenderOrder(self.sender, self._num_senders)
        self._by_sender.wait()
        return self._by_sender

    @classmethod
    def unpacked(
        cls, packed: torch.Tensor, num_edges: int, num_senders: int, num_receivers: int
    ) -> CudaGraph:
        """Return the order that :func:`sorted_edges` packed."""
        graph = cls.__new__(cls)
        start = _aligned(num_edges)
        graph.num_receivers = num_receivers
        graph._num_senders = num_senders
        graph.order, graph.sender = packed[:num_edges], packed[start : start + num_edges]
        graph.row_ptr = packed[2 * start :]
        graph._by_sender = None
        return graph


def _aligned(num_edges: int) -> int:
    """Return a length of at least `num_edges` that is a whole number of 16-byte words."""
    return (num_edges + 3) // 4 * 4


def packed_length(num_edges: int, num_receivers: int) -> int:
    """Return the length of the result of :func:`sorted_edges`, which is never `num_edges`."""
    return 2 * _aligned(num_edges) + num_receivers + 1


def sorted_edges(
    sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
) -> torch.Tensor:
    """Return the receiver order of an edge list as one tensor, for compiled programs.

    A compiled program sorts once per call, for all layers. Its orders are not remembered, because
    it writes new indices to the same memory without torch counting the change. The host does not
    wait for the device; an index out of range stops the program there with an assertion.
    """
    edges = sender.shape[0]
    _check_count(edges)
    if edges:
        low = torch.minimum(sender.amin(), receiver.amin())
        inside = (low >= 0) & (sender.amax() < num_senders) & (receiver.amax() < num_receivers)
        torch._assert_async(inside, "sender or receiver has an index that is not a node")
    graph = CudaGraph(sender, receiver, num_senders, num_receivers)
    pad = graph.order.new_zeros(_aligned(edges) - edges)
    return torch.cat([graph.order, pad, graph.sender, pad, graph.row_ptr])


_cuda_graphs: GraphCache[CudaGraph] = GraphCache(_REMEMBERED_EDGES)


def _check_count(num_edges: int) -> None:
    if num_edges > _MAX_CUDA_EDGES:
        raise UnsupportedProblemError(
            f"the graph has {num_edges} edges, and the CUDA kernels count to {_MAX_CUDA_EDGES}: "
            "split the graph"
        )


def _check(sender: torch.Tensor, receiver: torch.Tensor, senders: int, receivers: int) -> None:
    if not sender.numel():
        return
    limits = torch.stack([*torch.aminmax(sender), *torch.aminmax(receiver)]).tolist()
    for name, low, high, rows in (
        ("sender", *limits[:2], senders),
        ("receiver", *limits[2:], receivers),
    ):
        if low < 0 or high >= rows:
            raise ValueError(
                f"{name} has indices from {low} to {high}, expected 0 to {rows - 1}: "
                "does the edge list belong to these nodes?"
            )


def cuda_graph(
    sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
) -> CudaGraph:
    """Return the receiver order of an edge list, from memory if it is one of the last few.

    A list is identified by its memory and by torch's count of changes to it, so that looking it up
    does not wait for the device. The check of a new list does wait: an index out of range raises
    ValueError. While a CUDA graph is captured, sorting becomes part of the graph, so that replays
    follow indices that change in place.
    """
    _check_count(sender.shape[0])
    if torch.cuda.is_current_stream_capturing():
        return CudaGraph(sender, receiver, num_senders, num_receivers)
    if sender.is_inference() or receiver.is_inference():
        # torch counts no changes to inference tensors
        _check(sender, receiver, num_senders, num_receivers)
        return CudaGraph(sender, receiver, num_senders, num_receivers)
    # The storage is part of the key, because tensors that other libraries make of one buffer do not
    # share a count.
    key = (
        *(
            (t.untyped_storage()._cdata, t.data_ptr(), t._version, t.shape[0], t.dtype)
            for t in (sender, receiver)
        ),
        sender.device,
        num_senders,
        num_receivers,
    )
    graph = _cuda_graphs.get(key)
    if graph is None:
        _check(sender, receiver, num_senders, num_receivers)
        graph = CudaGraph(sender, receiver, num_senders, num_receivers)
        _cuda_graphs.add(key, graph)
    graph.wait()
    return graph
