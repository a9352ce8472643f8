"""Implementations of the convolution that are timed against each other.

Another one is a class with the members of :class:`~mdcg.bench.layer.Peer` and an entry in
:data:`PEERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import DeviceError
from ..problem import ConvProblem
from .jobs import MODEL_IMPLS, ON_REQUEST, PRECISIONS
from .layer import Graph, Layer, Peer, Prepared, component_major
from .peers_cuda import CueqPeer, OeqPeer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["PEERS", "choose_model_impls", "choose_peers", "skipped_model_impls", "skipped_peers"]


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
        if graph.batched:
            return Prepared(module)

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
        """Return None: the kernels run wherever mdcg does."""
        return None

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Close over the problem and the edges."""
        from ..ops import conv, tensor_product

        dtype = str(layer.dtype).removeprefix("torch.")
        problem = ConvProblem.from_e3nn(layer.tensor_product, dtype=dtype, layout=self.layout)
        sender, receiver, n_nodes = graph.sender, graph.receiver, graph.n_nodes

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            if graph.batched:
                return tensor_product(problem, node_feats, edge_attrs, weights)
            return conv(
                problem, node_feats, edge_attrs, weights, sender, receiver, num_receivers=n_nodes
            )

        if self.layout == "mul_ir":
            return Prepared(run)
        return component_major(run, problem, graph.sender.device)

    def counters(self) -> dict[str, float]:
        """Return the counters of the kernel cache."""
        from ..runtime import statistics

        return asdict(statistics())


_ALL: tuple[Peer, ...] = (
    E3nnPeer(),
    CueqPeer(),
    OeqPeer("oeq", deterministic=False),
    OeqPeer("oeq-det", deterministic=True),
    MdcgPeer("mdcg", "mul_ir"),
    MdcgPeer("mdcg-ir_mul", "ir_mul"),
)
PEERS = {peer.name: peer for peer in _ALL}
DEFAULT_PEERS = {"cpu": ("e3nn", "mdcg"), "cuda": tuple(PEERS)}


def skipped_peers(device: str) -> dict[str, str]:
    """Return the default implementations of a device that cannot run there, each with the reason.

    Parameters
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``.
    """
    reasons = {name: PEERS[name].missing(device) for name in DEFAULT_PEERS[device]}
    return {name: reason for name, reason in reasons.items() if reason is not None}


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
        skipped = skipped_peers(device)
        return [PEERS[name] for name in DEFAULT_PEERS[device] if name not in skipped]
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


def skipped_model_impls(device: str, names: Sequence[str] | None = None) -> dict[str, str]:
    """Return the implementations of whole models that cannot run on a device, with the reason.

    Parameters
    ----------
    device : str
    names : sequence of str, optional
        Of these; default: of all that run without being asked for.
    """
    if names is None:
        names = [name for name in MODEL_IMPLS if name not in ON_REQUEST]
    reasons = {name: _model_missing(name, device) for name in names}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def _model_missing(name: str, device: str) -> str | None:
    """Return why an implementation of whole models cannot run, or None."""
    if name.startswith("engine"):
        fixed = device == "cpu" and name.removeprefix("engine-") in PRECISIONS
        return "it is a choice on CUDA devices only" if fixed else None
    return PEERS[name].missing(device)


def choose_model_impls(names: Sequence[str] | None, device: str) -> tuple[str, ...]:
    """Return those of given implementations of whole models that can run, or of all.

    Raises
    ------
    ValueError
        Unknown name.
    DeviceError
        None of those that were asked for can run.
    """
    if names is None:
        names = [name for name in MODEL_IMPLS if name not in ON_REQUEST]
    for name in names:
        if name not in MODEL_IMPLS:
            raise ValueError(
                f"implementation {name!r} is unknown, expected one of {', '.join(MODEL_IMPLS)}"
            )
    skipped = skipped_model_impls(device, names)
    if names and len(skipped) == len(set(names)):
        name, reason = next(iter(skipped.items()))
        raise DeviceError(f"implementation {name} cannot run: {reason}: leave it out of --impl")
    return tuple(name for name in names if name not in skipped)
