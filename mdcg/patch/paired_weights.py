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

#: The attribute of a radial network that holds the class it had.
_STOCK = "_mdcg_stock"

#: Networks whose rows are independent: class name, and module of the class.
_ROWWISE = (("ScalarMLPFunction", "nequip.nn."), ("FullyConnectedNet", "e3nn.nn."))


class PendingWeights:
    """Weights of edges that are not computed yet; any operation of torch on them computes them.

    Parameters
    ----------
    network : callable
        Radial network, rows to rows.
    features : torch.Tensor, shape (n_edges, n_features)
    """

    def __init__(
        self, network: Callable[[torch.Tensor], torch.Tensor], features: torch.Tensor
    ) -> None:
        self.network = network
        self.features = features

    def compute(self) -> torch.Tensor:
        """Return one row of weights per edge."""
        weights: torch.Tensor = self.network(self.features)
        return weights

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
        product: torch.Tensor = self.compute() * other
        return product

    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        return getattr(self.compute(), name)


class DeferredRadialNetwork(torch.nn.Module):
    """A radial network whose result a patched convolution computes, once per pair of edges.

    Objects are never constructed: patching changes the class of an existing network in place.
    """

    _mdcg_stock: Any

    def forward(self, features: torch.Tensor) -> torch.Tensor | PendingWeights:
        """Return the weights, or a `PendingWeights` where edges can be paired.

        Parameters
        ----------
        features : torch.Tensor, shape (n_edges, n_features)
        """
        hooks = self._forward_hooks or self._forward_pre_hooks
        if hooks or not isinstance(features, torch.Tensor) or not can_pair(features):
            return self._weights(features)
        return PendingWeights(self._weights, features)

    def _weights(self, rows: torch.Tensor) -> torch.Tensor:
        weights: torch.Tensor = self._mdcg_stock.forward(self, rows)
        return weights

    def __iter__(self) -> Iterator[torch.nn.Module]:
        """Return the layers of e3nn's networks, which are ``torch.nn.Sequential``."""
        return iter(self.children())


def defer(network: Any) -> None:
    """Change the class of a radial network if its rows are independent."""
    if any(is_stock(network, *known) for known in _ROWWISE) and "forward" not in network.__dict__:
        network.__dict__[_STOCK] = type(network)
        network.__class__ = DeferredRadialNetwork


def undo_deferral(network: Any) -> None:
    """Give a radial network its own class back; does nothing on one that has it."""
    if isinstance(network, DeferredRadialNetwork):
        network.__class__ = network.__dict__.pop(_STOCK)


def conv_of_pending(
    problem: ConvProblem,
    node_feats: torch.Tensor,
    edge_attrs: torch.Tensor,
    pending: PendingWeights,
    sender: torch.Tensor,
    receiver: torch.Tensor,
) -> torch.Tensor:
    """Evaluate a convolution and its radial network, the network once per pair of edges.

    Parameters
    ----------
    problem : ConvProblem
    node_feats : torch.Tensor, shape (n_nodes, problem.irreps_in1.dim)
    edge_attrs : torch.Tensor, shape (n_edges, problem.irreps_in2.dim)
    pending : PendingWeights
    sender, receiver : torch.Tensor, shape (n_edges,)

    Returns
    -------
    torch.Tensor, shape (n_nodes, problem.irreps_out.dim)
    """
    features = pending.features
    pairs = None
    if can_pair(node_feats, edge_attrs, features, sender, receiver):
        pairs = find_pairs(problem, edge_attrs, features, sender, receiver, len(node_feats))
    if pairs is None:
        return conv(problem, node_feats, edge_attrs, pending.compute(), sender, receiver)
    weights = pending.network(mean_of_pairs(features, pairs))
    return conv_of_pairs(problem, node_feats, edge_attrs, weights, sender, receiver, pairs)
