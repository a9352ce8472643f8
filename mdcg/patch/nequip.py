"""The layers of NequIP models that can be patched.

Layers are recognised by the names of their classes, not by ``isinstance``, because models from
``.nequip.zip`` packages contain copies of the classes of NequIP and e3nn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import a_type
from ._frameworks import is_stock
from .fused_scatter import FusedTensorProductScatter
from .layer import (
    ACCELERATED,
    Connection,
    Convolution,
    Layer,
    forward_refusal,
    product_refusal,
)

_PARTS = ("feature_irreps_in", "irreps_edge_attr", "irreps_mid", "instructions")
_SUBCLASSES = {
    "OpenEquivarianceTensorProductScatter": "openequivariance",
    "CuEquivarianceTensorProductScatter": "cuequivariance_torch",
}


def find_layers(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield the convolutions and self-connections of a model."""
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


class NequipConvolution(Convolution):
    """A ``TensorProductScatter``: gather, tensor product and sum over neighbours."""

    network = "edge_mlp"

    @property
    def tensor_product(self) -> Any:
        return self.module.tp

    def refusal(self) -> str:
        kind = type(self.module).__qualname__
        if kind in _SUBCLASSES:
            return (
                f"already accelerated by {ACCELERATED[_SUBCLASSES[kind]]}: "
                "load the model without that modifier"
            )
        if not is_stock(self.module, "TensorProductScatter", "nequip.nn."):
            return f"tp_scatter is {a_type(self.module)}, expected NequIP's TensorProductScatter"
        return product_refusal("tp", self.module.tp) or forward_refusal(self.module)

    def stock(
        self, module: Any, x: Tensor, y: Tensor, w: Tensor, edges: Sequence[Tensor]
    ) -> Tensor:
        summed: Tensor = module.forward(x, y, w, edges[1], edges[0])
        return summed

    def has_own_network(self) -> bool:
        return is_stock(self.block, "InteractionBlock", "nequip.nn.") and hasattr(
            self.block, self.network
        )

    def fused_class(self) -> type:
        return FusedTensorProductScatter
