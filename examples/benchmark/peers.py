"""Implementations of the convolution that are timed against each other.

Another one is a class with ``name``, ``missing(device)`` (why it cannot run, or None) and
``prepare(layer, graph)``, and an entry in :data:`PEERS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from mdcg.errors import DeviceError
from mdcg.ops import conv, tensor_product

from .layer import Graph, Layer, Prepared
from .peers_cuda import CueqPeer, OeqPeer


class E3nnPeer:
    """Gather, ``o3.TensorProduct`` and sum, as MACE and NequIP do."""

    name = "e3nn"

    def missing(self, device: str) -> str | None:
        return None if find_spec("e3nn") else "e3nn is not installed"

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        module = layer.tensor_product
        sender, receiver, n_nodes = graph.sender, graph.receiver, graph.n_nodes
        if graph.batched:
            return Prepared(module)

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            messages: Tensor = module(node_feats[sender], edge_attrs, weights)
            out = messages.new_zeros((n_nodes, messages.shape[1]))
            return out.scatter_add_(0, receiver[:, None].expand_as(messages), messages)

        return Prepared(run)


class MdcgPeer:
    """The generated kernels, on features in e3nn's layout."""

    name = "mdcg"

    def missing(self, device: str) -> str | None:
        return None

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        problem, edges = layer.problem, (graph.sender, graph.receiver)

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            if graph.batched:
                return tensor_product(problem, node_feats, edge_attrs, weights)
            operands = (node_feats, edge_attrs, weights)
            return conv(problem, *operands, *edges, num_receivers=graph.n_nodes)

        return Prepared(run)


_ALL: tuple[Any, ...] = (
    E3nnPeer(),
    CueqPeer(),
    OeqPeer(),
    MdcgPeer(),
)
PEERS = {peer.name: peer for peer in _ALL}


def skipped_peers(device: str) -> dict[str, str]:
    """Return the implementations that cannot run on a device, each with the reason."""
    reasons = {name: peer.missing(device) for name, peer in PEERS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def choose_peers(names: Sequence[str] | None, device: str) -> list[Any]:
    """Return the implementations of given names, or all that can run."""
    skipped = skipped_peers(device)
    for name in names or ():
        if name not in PEERS:
            known = ", ".join(PEERS)
            raise ValueError(f"implementation {name!r} is unknown, expected one of {known}")
        if name in skipped:
            raise DeviceError(
                f"implementation {name} cannot run: {skipped[name]}: leave it out of --impl"
            )
    return [PEERS[name] for name in names or PEERS if name not in skipped]
