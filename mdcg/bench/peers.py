"""Implementations of the convolution that are timed against each other.

Another one is a class with :class:`Peer`'s members and an entry in :data:`PEERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import DeviceError, MissingDependencyError
from ..problem import ConvProblem, Irreps
from .cases import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "PEERS",
    "Graph",
    "Layer",
    "Peer",
    "Prepared",
    "build_layer",
    "choose_peers",
    "default_dtype",
]

Convolution = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class Layer:
    """A case as an e3nn module, from which all implementations are made, and as a problem."""

    case: Case
    dtype: torch.dtype
    tensor_product: Any
    problem: ConvProblem


@dataclass(frozen=True)
class Graph:
    """Edges on the device; `sender` and `receiver` are int64, shape (n_edges,)."""

    n_nodes: int
    sender: Tensor
    receiver: Tensor


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Prepared:
    """An implementation ready to run on one graph.

    Parameters
    ----------
    run : callable
        ``(node_feats, edge_attrs, weights) -> node_out``, in the implementation's own layout.
    nodes_in, nodes_out : callable
        Convert node features, or outputs, from e3nn's layout to the implementation's own.
        Done outside of the timed span.
    nodes_in_back, nodes_out_back : callable
        The way back.
    """

    run: Convolution
    nodes_in: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_in_back: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_out: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_out_back: Callable[[Tensor], Tensor] = field(default=_same)


class Peer(Protocol):
    """One implementation."""

    name: str
    description: str

    def missing(self, device: str) -> str | None:
        """Return why this implementation cannot run on a device, or None."""

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Build it for a layer and a graph."""

    def counters(self) -> dict[str, float]:
        """Return what this process compiled and loaded so far; empty if that is not counted."""


class E3nnPeer:
    """Gather, ``o3.TensorProduct`` and sum, as MACE and NequIP do."""

    name = "e3nn"
    description = "gather, o3.TensorProduct (TorchScript code, as it comes), scatter_add"

    def missing(self, device: str) -> str | None:
        """Return why e3nn cannot run, or None."""
        return None if find_spec("e3nn") else "e3nn is not installed"

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Close over the module and the edges."""
        module = layer.tensor_product
        sender, receiver, n_nodes = graph.sender, graph.receiver, graph.n_nodes

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            messages: Tensor = module(node_feats[sender], edge_attrs, weights)
            out = messages.new_zeros((n_nodes, messages.shape[1]))
            return out.scatter_add_(0, receiver[:, None].expand_as(messages), messages)

        return Prepared(run)

    def counters(self) -> dict[str, float]:
        """Return nothing: e3nn builds its code with the module."""
        return {}


class MdcgPeer:
    """The generated kernels, on features in e3nn's layout or component-major."""

    def __init__(self, name: str, layout: str) -> None:
        self.name = name
        self.layout = layout
        self.description = f"mdcg.conv, generated kernels, layout {layout}"

    def missing(self, device: str) -> str | None:
        """Return why the kernels cannot run, or None."""
        return None if device == "cpu" else f"mdcg has no kernels for device {device!r} yet"

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Close over the problem and the edges."""
        from ..ops import conv

        dtype = str(layer.dtype).removeprefix("torch.")
        problem = ConvProblem.from_e3nn(layer.tensor_product, dtype=dtype, layout=self.layout)
        sender, receiver, n_nodes = graph.sender, graph.receiver, graph.n_nodes

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            return conv(
                problem, node_feats, edge_attrs, weights, sender, receiver, num_receivers=n_nodes
            )

        if self.layout == "mul_ir":
            return Prepared(run)
        device = graph.sender.device
        into, back = _transposition(problem.irreps_in1, device)
        out_into, out_back = _transposition(problem.irreps_out, device)
        return Prepared(
            run,
            nodes_in=lambda t: t[:, into].contiguous(),
            nodes_in_back=lambda t: t[:, back],
            nodes_out=lambda t: t[:, out_into].contiguous(),
            nodes_out_back=lambda t: t[:, out_back],
        )

    def counters(self) -> dict[str, float]:
        """Return the counters of the kernel cache."""
        from ..runtime import statistics

        return asdict(statistics())


def _transposition(irreps: Irreps, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return column orders mul_ir -> ir_mul and back."""
    import torch

    pieces = [torch.zeros(0, dtype=torch.int64)]
    for block in irreps:
        columns = block.offset + torch.arange(block.dim)
        pieces.append(columns.reshape(block.mul, block.ir.dim).T.reshape(-1))
    into = torch.cat(pieces).to(device)
    return into, torch.argsort(into)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (E3nnPeer(), MdcgPeer("mdcg", "mul_ir"), MdcgPeer("mdcg-ir_mul", "ir_mul"))
}
DEFAULT_PEERS = ("e3nn", "mdcg")


def choose_peers(names: Sequence[str] | None, device: str) -> list[Peer]:
    """Return the implementations of given names, or the default ones that can run.

    Raises
    ------
    ValueError
        Unknown name.
    DeviceError
        One that was asked for cannot run.
    """
    if names is None:
        return [PEERS[name] for name in DEFAULT_PEERS if PEERS[name].missing(device) is None]
    chosen = []
    for name in names:
        peer = PEERS.get(name)
        if peer is None:
            raise ValueError(
                f"implementation {name!r} is unknown, expected one of {', '.join(PEERS)}"
            )
        reason = peer.missing(device)
        if reason is not None:
            raise DeviceError(f"implementation {name} cannot run: {reason}: leave it out of --impl")
        chosen.append(peer)
    return chosen


def build_layer(case: Case, dtype: torch.dtype) -> Layer:
    """Build the e3nn module of a case, with its own constants rounded to `dtype`.

    Raises
    ------
    MissingDependencyError
        e3nn is not installed.
    """
    import torch

    try:
        # e3nn 0.4.4 loads constants that hold slices, which weights_only refuses
        with torch.serialization.safe_globals([slice]):
            from e3nn import o3
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"bench conv builds its layers with e3nn, but {error.name!r} is not installed: "
            "pip install 'mdcg[mace]' or 'mdcg[nequip]'"
        ) from error
    irreps_out, instructions = case.build()
    with default_dtype(dtype):
        module = o3.TensorProduct(
            case.irreps_in1,
            case.irreps_in2,
            irreps_out,
            list(instructions),
            shared_weights=case.shared_weights,
            internal_weights=False,
        )
    name = str(dtype).removeprefix("torch.")
    return Layer(case, dtype, module, ConvProblem.from_e3nn(module, dtype=name))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype for a while: e3nn and MACE build their modules in it."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
