"""The layers that mix channels by the type of the atom, in MACE and in NequIP models."""

from __future__ import annotations

from typing import ClassVar

from ..errors import a_type
from ..problem import ConvProblem
from .layer import PROBLEM, Layer, forward_refusal, frozen_dtype, is_stock
from .probe import LIMITS, probe_rows


class Connection(Layer):
    """A ``FullyConnectedTensorProduct`` of features with an encoding of the atom's type.

    MACE's ``skip_tp`` and NequIP's self-connection ``sc``.
    """

    required: ClassVar[bool] = False

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        product = self.module
        if not is_stock(product, "FullyConnectedTensorProduct", "e3nn.o3."):
            return f"it is {a_type(product)}, expected FullyConnectedTensorProduct"
        if not (product.internal_weights and product.shared_weights):
            return "it has no weights of its own"
        if any(ir.l or ir.p != 1 for _, ir in product.irreps_in2):
            return f"second operand is {product.irreps_in2}, expected even scalars"
        if frozen_dtype(product) not in LIMITS:
            return f"dtype is {frozen_dtype(product)}, expected float32 or float64"
        return forward_refusal(product)

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
