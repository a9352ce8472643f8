"""The layers of NequIP models that can be patched.

Layers are recognised by the names of their classes, not by ``isinstance``, because models from
``.nequip.zip`` packages contain copies of the classes of NequIP and e3nn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..errors import a_type
from ..problem import ConvProblem
from .connections import Connection
from .layer import ACCELERATED, PROBLEM, Layer, forward_refusal, frozen_dtype, is_stock
from .probe import LIMITS, probe_conv

_PARTS = ("feature_irreps_in", "irreps_edge_attr", "irreps_mid", "instructions")
_SUBCLASSES = {
    "OpenEquivarianceTensorProductScatter": "openequivariance",
    "CuEquivarianceTensorProductScatter": "cuequivariance_torch",
}


def find_layers(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield convolution and self-connection of every interaction block."""
    for name, block in model.named_modules():
        scatter = getattr(block, "tp_scatter", None)
        if not (isinstance(scatter, torch.nn.Module) and _is_scatter(scatter)):
            continue
        prefix = f"{name}." if name else ""
        yield NequipConvolution(f"{prefix}tp_scatter", scatter, block)
        connection = getattr(block, "sc", None)
        if isinstance(connection, torch.nn.Module):
            yield Connection(f"{prefix}sc", connection)


def _is_scatter(module: Any) -> bool:
    return isinstance(getattr(module, "tp", None), torch.nn.Module) and all(
        hasattr(module, part) for part in _PARTS
    )


class NequipConvolution(Layer):
    """A ``TensorProductScatter``: gather, tensor product and sum over neighbours.

    Parameters
    ----------
    name : str
    module : torch.nn.Module
    block : torch.nn.Module
        The interaction block, whose radial network then runs once for both directions of an edge.
    """

    def __init__(self, name: str, module: Any, block: torch.nn.Module) -> None:
        super().__init__(name, module)
        self.block = block

    @property
    def tensor_product(self) -> Any:
        """The e3nn tensor product inside it."""
        return self.module.tp

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        kind = type(self.module).__qualname__
        if kind in _SUBCLASSES:
            return (
                f"already accelerated by {ACCELERATED[_SUBCLASSES[kind]]}: "
                "load the model without that modifier"
            )
        if not is_stock(self.module, "TensorProductScatter", "nequip.nn."):
            return f"tp_scatter is {a_type(self.module)}, expected NequIP's TensorProductScatter"
        return _product_refusal("tp", self.module.tp) or forward_refusal(self.module)

    def probe(self, problem: ConvProblem) -> float:
        """Compare value and gradients of the convolution."""

        def stock(
            scatter: Any,
            x: torch.Tensor,
            y: torch.Tensor,
            w: torch.Tensor,
            sender: torch.Tensor,
            receiver: torch.Tensor,
        ) -> torch.Tensor:
            summed: torch.Tensor = scatter.forward(x, y, w, receiver, sender)
            return summed

        return probe_conv(self.module.tp, self.module, stock, problem, name=self.name)

    def patch(self, problem: ConvProblem) -> None:
        """Change the class of the layer."""
        from .fused_scatter import STOCK, FusedTensorProductScatter
        from .fused_state import watch_loads
        from .paired_weights import defer

        setattr(self.module, PROBLEM, problem.to_json())
        self.module.__dict__[STOCK] = type(self.module)
        self.module.__class__ = FusedTensorProductScatter
        watch_loads(self.module)
        self.module._remember()
        if _calls_network_for_scatter(self.block):
            defer(self.block.edge_mlp)

    def restore(self) -> None:
        """Give the layer its class back."""
        from .fused_scatter import STOCK
        from .fused_state import forget_loads
        from .paired_weights import undo_deferral

        if self.is_patched:
            forget_loads(self.module)
        undo_deferral(getattr(self.block, "edge_mlp", None))
        stock = self.module.__dict__.pop(STOCK, None)
        if stock is not None:
            self.module.__class__ = stock
        self.module.__dict__.pop(PROBLEM, None)


def _calls_network_for_scatter(block: Any) -> bool:
    """Whether the block hands what ``edge_mlp`` returns to ``tp_scatter`` and to nothing else."""
    return is_stock(block, "InteractionBlock", "nequip.nn.") and hasattr(block, "edge_mlp")


def _product_refusal(name: str, product: Any) -> str:
    if not is_stock(product, "TensorProduct", "e3nn.o3."):
        return f"{name} is {a_type(product)}, expected an e3nn TensorProduct"
    if product.shared_weights or product.internal_weights:
        return f"{name} has weights of its own, expected one row of weights per edge"
    if frozen_dtype(product) not in LIMITS:
        return f"dtype is {frozen_dtype(product)}, expected float32 or float64"
    return forward_refusal(product)
