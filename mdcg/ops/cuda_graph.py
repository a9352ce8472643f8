"""Receiver order of a graph on a CUDA device, made by torch's own sort and remembered."""

from __future__ import annotations

import threading

import torch

from ..errors import UnsupportedProblemError
from .cuda_program import current_stream
from .graph import GraphCache

__all__ = ["CudaGraph", "cuda_graph", "packed_length", "sorted_edges"]

# Edges of the lists remembered, all but the newest (about 28 bytes each).
_REMEMBERED_EDGES = 1 << 25

# Kernels count edges in 32 bits.
_MAX_EDGES = 2**31 - 64

# Of the orders by sender, which are made when they are first asked for.
_lock = threading.Lock()


class _Ordered:
    """Tensors made on one stream, and used on others."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self._made_on = torch.cuda.current_stream(tensors[0].device)
        self._made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._made.record(self._made_on)

    def wait(self) -> None:
        """Order the current stream behind the one that made the tensors."""
        device = self._tensors[0].device
        if current_stream(device.index) != self._made_on.cuda_stream:
            current = torch.cuda.current_stream(device)
            current.wait_event(self._made)
            for tensor in self._tensors:
                tensor.record_stream(current)


class SenderOrder(_Ordered):
    """Edges by sender, as int32.

    `place` has the places, in sender order, of the edges in receiver order; `row_ptr` where each
    sender's edges start.
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

    `order` and `sender` have the edges in receiver order, and their senders in that order;
    `row_ptr` where each receiver's edges start.
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
        self._indices = (sender, receiver)  # kept alive, as their addresses are in the key
        self._by_sender: SenderOrder | None = None
        super().__init__(self.order, self.sender, self.row_ptr)

    @property
    def num_edges(self) -> int:
        """Length of the edge list."""
        return self.order.shape[0]

    def by_sender(self) -> SenderOrder:
        """Return the order that deterministic gradients of node features are summed in."""
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
    """Return a length after which 16-byte words start."""
    return (num_edges + 3) // 4 * 4


def packed_length(num_edges: int, num_receivers: int) -> int:
    """Return the length of what :func:`sorted_edges` returns; it differs from `num_edges`."""
    return 2 * _aligned(num_edges) + num_receivers + 1


def sorted_edges(
    sender: torch.Tensor, receiver: torch.Tensor, num_senders: int, num_receivers: int
) -> torch.Tensor:
    """Return the receiver order of an edge list as one tensor, for compiled programs.

    They sort once per call for all layers. Orders are not remembered by their memory, because a
    compiled program writes other indices to the same memory without counting the change. The host
    does not wait for the device; an index out of range stops the program there with an assertion.
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


_graphs: GraphCache[CudaGraph] = GraphCache(_REMEMBERED_EDGES)


def _check_count(num_edges: int) -> None:
    if num_edges > _MAX_EDGES:
        raise UnsupportedProblemError(
            f"the graph has {num_edges} edges, and the CUDA kernels count to {_MAX_EDGES}: "
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

    A list is known by its memory and by torch's count of changes to it, so that looking it up does
    not wait for the device. A new list is checked once, which does wait: an index out of range is a
    ValueError. While a CUDA graph is captured, the order is made inside the graph: replays then
    follow indices that change in place.
    """
    _check_count(sender.shape[0])
    if torch.cuda.is_current_stream_capturing():
        return CudaGraph(sender, receiver, num_senders, num_receivers)
    if sender.is_inference() or receiver.is_inference():
        # such tensors do not count changes
        _check(sender, receiver, num_senders, num_receivers)
        return CudaGraph(sender, receiver, num_senders, num_receivers)
    # the storage, because tensors that other libraries make of one buffer share no count
    key = (
        *(
            (t.untyped_storage()._cdata, t.data_ptr(), t._version, t.shape[0], t.dtype)
            for t in (sender, receiver)
        ),
        sender.device,
        num_senders,
        num_receivers,
    )
    graph = _graphs.get(key)
    if graph is None:
        _check(sender, receiver, num_senders, num_receivers)
        graph = CudaGraph(sender, receiver, num_senders, num_receivers)
        _graphs.add(key, graph)
    graph.wait()
    return graph
