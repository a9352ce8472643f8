"""Radial networks that run inside the convolution, once for both directions of an edge.

Pickles of patched models name the class below, so neither the module nor the class may move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..ops import conv
from ..ops.paired import can_pair, conv_of_pairs, find_pairs, mean_of_pairs
from ..problem import ConvProblem
from ._frameworks import is_stock

#: The attribute of a patched module that holds its stock class, if that is not a base class.
STOCK = "_mdcg_stock"

#: Networks whose output rows each depend on one input row: class name, and module of the class.
_ROWWISE = (("ScalarMLPFunction", "nequip.nn."), ("FullyConnectedNet", "e3nn.nn."))


class PendingWeights:
    """Weights of edges that are not computed yet. Any torch operation on them computes them."""

    def __init__(
        self, network: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor
    ) -> None:
        self.network = network  # rows to rows
        self.features = features  # [num_edges, num_features]

    def compute(self) -> torch.Tensor:
        """Return one row of weights per edge."""
        return self.network(self.features)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        ready = [a.compute() if isinstance(a, cls) else a for a in args]
        named = {k: v.compute() if isinstance(v, cls) else v for k, v in (kwargs or {}).items()}
        return function(*ready, **named)

    def __mul__(self, other: Any) -> torch.Tensor:
        return self.compute() * other

    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compute(), name)


class DeferredRadialNetwork(torch.nn.Module):
    """A radial network that a patched convolution evaluates, once per pair of edges.

    Patching changes the class of an existing network in place.
    """

    _mdcg_stock: Any

    def forward(self, features: torch.Tensor) -> torch.Tensor | PendingWeights:
        """Return the weights, or a `PendingWeights` where edges can be paired."""
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or not isinstance(features, torch.Tensor) or not can_pair(features):
            return self._weights(features)
        return PendingWeights(self._weights, features)

    def _weights(self, rows: torch.Tensor) -> torch.Tensor:
        return self._mdcg_stock.forward(self, rows)

    def __iter__(self) -> Iterator[torch.nn.Module]:
        """Iterate over the layers, as e3nn's networks (``torch.nn.Sequential``) do."""
        return iter(self.children())


def defer(network: Any) -> None:
    """Change the class of a radial network if its rows are independent."""
    if any(is_stock(network, *known) for known in _ROWWISE) and "forward" not in network.__dict__:
        network.__dict__[STOCK] = type(network)
        network.__class__ = DeferredRadialNetwork


def undo_deferral(network: Any) -> None:
    """Undo :func:`defer`; does nothing on other networks."""
    if isinstance(network, DeferredRadialNetwork):
        network.__class__ = network.__dict__.pop(STOCK)


def conv_of_pending(
    problem: ConvProblem,
    node_feats: torch.Tensor,
    edge_attrs: torch.Tensor,
    pending: PendingWeights,
    sender: torch.Tensor,
    receiver: torch.Tensor,
) -> torch.Tensor:
    """Evaluate a convolution and its radial network, the network once per pair of edges."""
    features = pending.features
    pairs = None
    if can_pair(node_feats, edge_attrs, features, sender, receiver):
        pairs = find_pairs(problem, edge_attrs, features, sender, receiver, len(node_feats))
    if pairs is None:
        return conv(problem, node_feats, edge_attrs, pending.compute(), sender, receiver)
    weights = pending.network(mean_of_pairs(features, pairs))
    return conv_of_pairs(problem, node_feats, edge_attrs, weights, sender, receiver, pairs)
