"""The layers of NequIP models that can be patched.

Layers are recognised by what they are: models from ``.nequip.zip`` packages carry copies of the
classes of NequIP and e3nn, so that ``isinstance`` does not find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from ..problem import ConvProblem
from .layer import ACCELERATED, PROBLEM, Layer, frozen_dtype, is_stock
from .probe import LIMITS, probe_conv, probe_rows

__all__ = ["NequipConvolution", "SelfConnection", "find_layers"]

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
        yield NequipConvolution(f"{prefix}tp_scatter", scatter)
        connection = getattr(block, "sc", None)
        if isinstance(connection, torch.nn.Module):
            yield SelfConnection(f"{prefix}sc", connection)


def _is_scatter(module: Any) -> bool:
    return isinstance(getattr(module, "tp", None), torch.nn.Module) and all(
        hasattr(module, part) for part in _PARTS
    )


class NequipConvolution(Layer):
    """A ``TensorProductScatter``: gather, tensor product and sum over neighbours."""

    @property
    def tensor_product(self) -> Any:
        """The e3nn tensor product below it."""
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
            return f"tp_scatter is a {kind}, expected NequIP's TensorProductScatter"
        return _product_refusal("tp", self.module.tp) or _forward_refusal(self.module)

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

        setattr(self.module, PROBLEM, problem.to_json())
        self.module.__dict__[STOCK] = type(self.module)
        self.module.__class__ = FusedTensorProductScatter
        self.module._remember()

    def restore(self) -> None:
        """Give the layer its class back."""
        from .fused_scatter import STOCK

        stock = self.module.__dict__.pop(STOCK, None)
        if stock is not None:
            self.module.__class__ = stock
        self.module.__dict__.pop(PROBLEM, None)


class SelfConnection(Layer):
    """The self-connection: a ``FullyConnectedTensorProduct`` of features and type embedding."""

    required: ClassVar[bool] = False

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        product = self.module
        if not is_stock(product, "FullyConnectedTensorProduct", "e3nn.o3."):
            return f"sc is a {type(product).__qualname__}, expected FullyConnectedTensorProduct"
        if not (product.internal_weights and product.shared_weights):
            return "sc has no weights of its own"
        if any(ir.l or ir.p != 1 for _, ir in product.irreps_in2):
            return f"second operand is {product.irreps_in2}, expected even scalars"
        if frozen_dtype(product) not in LIMITS:
            return f"dtype is {frozen_dtype(product)}, expected float32 or float64"
        return _forward_refusal(product)

    def probe(self, problem: ConvProblem) -> float:
        """Compare value and gradients, with rows of the second operand that repeat."""
        from .species_product import SpeciesProduct

        product = SpeciesProduct(problem)
        return probe_rows(self.module, product.grouped, name=self.name)

    def patch(self, problem: ConvProblem) -> None:
        """Change the class of the layer."""
        from .fused_connection import fused_class

        setattr(self.module, PROBLEM, problem.to_json())
        self.module.__class__ = fused_class(type(self.module))

    def restore(self) -> None:
        """Give the layer its class back."""
        if self.is_patched:
            self.module.__class__ = type(self.module).__mro__[2]
        self.module.__dict__.pop(PROBLEM, None)


def _product_refusal(name: str, product: Any) -> str:
    if not is_stock(product, "TensorProduct", "e3nn.o3."):
        return f"{name} is a {type(product).__qualname__}, expected an e3nn TensorProduct"
    if product.shared_weights or product.internal_weights:
        return f"{name} has weights of its own, expected one row of weights per edge"
    if frozen_dtype(product) not in LIMITS:
        return f"dtype is {frozen_dtype(product)}, expected float32 or float64"
    return _forward_refusal(product)


def _forward_refusal(module: Any) -> str:
    if "forward" in module.__dict__:
        return "its forward has been replaced by another package: undo that first"
    return ""
