"""A layer that can be patched: the interface between adapters and :mod:`mdcg.patch.patching`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from ..errors import a_type
from ..problem import ConvProblem, wigner_3j
from ._frameworks import is_stock
from .fused_state import FusedState, forget_loads, watch_loads
from .paired_weights import STOCK, defer, undo_deferral
from .probe import LIMITS, probe_conv, probe_rows
from .report import LEFT, REFUSED, LayerReport
from .species_product import SpeciesProduct

#: Packages whose layers are recognised, by the top-level module of their classes.
ACCELERATED = {"cuequivariance_torch": "cuEquivariance", "openequivariance": "OpenEquivariance"}
#: The attribute of a patched layer that holds the JSON text of its problem.
PROBLEM = "_mdcg_problem"


class Layer:
    """A layer that was found, patched or not; adapters have a subclass for each kind."""

    #: Whether :func:`mdcg.patch_model` raises if a layer of this kind cannot be patched.
    required: ClassVar[bool] = True
    #: The attribute of a patched layer that holds the JSON text of its problem.
    text: ClassVar[str] = PROBLEM

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module

    @property
    def tensor_product(self) -> Any:
        """The tensor product whose irreps and instructions describe the layer."""
        return self.module

    @property
    def is_patched(self) -> bool:
        """Whether the module has the class that patching gives it."""
        return hasattr(type(self.module), self.text)

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        return ""

    def describe(self, status: str, reason: str = "", problem: Any = None) -> LayerReport:
        """Return the layer's row of a report; `problem` is what `make_problem` returned."""
        return describe(self.name, self.tensor_product, status, reason)

    def make_problem(self) -> Any:
        """Describe the computation from the module's buffers, or raise UnsupportedProblemError."""
        return ConvProblem.from_e3nn(self.tensor_product)

    def probe(self, problem: Any) -> float:
        """Return the largest relative error against the stock layer, or raise VerificationError."""
        raise NotImplementedError

    def fused_class(self) -> type:
        """Return the class that patching gives the module."""
        raise NotImplementedError

    def patch(self, problem: Any) -> None:
        """Change the class of the module, in place."""
        fused = self.fused_class()
        if not issubclass(fused, type(self.module)):  # restore() cannot find it among the bases
            self.module.__dict__[STOCK] = type(self.module)
        self.module.__dict__[self.text] = problem.to_json()
        self.module.__class__ = fused
        if issubclass(fused, FusedState):
            watch_loads(self.module)
            self.module._prepare()

    def restore(self) -> None:
        """Undo :meth:`patch`; does nothing on a module that is not patched."""
        if isinstance(self.module, FusedState):
            forget_loads(self.module)
        if self.is_patched:
            stock = next(
                c for c in type(self.module).__mro__ if not c.__module__.startswith("mdcg.")
            )
            self.module.__class__ = self.module.__dict__.pop(STOCK, stock)
        self.module.__dict__.pop(self.text, None)


class Convolution(Layer):
    """A convolution whose radial network then runs once for both directions of an edge."""

    #: The attribute of the block that holds the radial network.
    network: ClassVar[str]

    def __init__(self, name: str, module: Any, block: Any) -> None:
        super().__init__(name, module)
        self.block = block

    def stock(
        self, module: Any, x: Tensor, y: Tensor, w: Tensor, edges: Sequence[Tensor]
    ) -> Tensor:
        """Return the summed messages of a stock layer; `edges` are sender and receiver."""
        raise NotImplementedError

    def has_own_network(self) -> bool:
        """Whether the output of the block's radial network goes to this layer alone."""
        raise NotImplementedError

    def probe(self, problem: ConvProblem) -> float:
        return probe_conv(self.tensor_product, self.module, self.stock, problem, name=self.name)

    def patch(self, problem: ConvProblem) -> None:
        super().patch(problem)
        if self.has_own_network():
            defer(getattr(self.block, self.network))

    def restore(self) -> None:
        undo_deferral(getattr(self.block, self.network, None))
        super().restore()


class Connection(Layer):
    """A ``FullyConnectedTensorProduct`` of features with an encoding of the atom's type.

    MACE's ``skip_tp`` and NequIP's self-connection ``sc``, which mix channels by that type.
    """

    required: ClassVar[bool] = False

    def refusal(self) -> str:
        product = self.module
        if not is_stock(product, "FullyConnectedTensorProduct", "e3nn.o3."):
            return f"it is {a_type(product)}, expected FullyConnectedTensorProduct"
        if not (product.internal_weights and product.shared_weights):
            return "it has no weights of its own"
        if any(ir.l or ir.p != 1 for _, ir in product.irreps_in2):
            return f"second operand is {product.irreps_in2}, expected even scalars"
        return _dtype_refusal(product) or forward_refusal(product)

    def probe(self, problem: ConvProblem) -> float:
        return probe_rows(self.module, SpeciesProduct(problem).grouped, name=self.name)

    def fused_class(self) -> type:
        from .fused_connection import fused_class

        return fused_class(type(self.module))


def describe(name: str, tensor_product: Any, status: str, reason: str = "") -> LayerReport:
    """Return the row of a report for a tensor product."""
    in1, in2, out = (
        _text(getattr(tensor_product, f"irreps_{end}", "")) for end in ("in1", "in2", "out")
    )
    try:
        has_kernel = status not in (LEFT, REFUSED)
        key = ConvProblem.from_e3nn(tensor_product).key() if has_kernel else ""
        degrees = [
            (
                tensor_product.irreps_in1[p.i_in1].ir.l,
                tensor_product.irreps_in2[p.i_in2].ir.l,
                tensor_product.irreps_out[p.i_out].ir.l,
            )
            for p in tensor_product.instructions
        ]
        nnz = sum(int(np.count_nonzero(wigner_3j(*triple))) for triple in degrees)
    except AttributeError:  # not an e3nn tensor product
        degrees, nnz, key = [], 0, ""
    weights = int(getattr(tensor_product, "weight_numel", 0))
    return LayerReport(name, in1, in2, out, len(degrees), nnz, weights, status, reason, key)


def _dtype_refusal(product: Any) -> str:
    dtype = product.output_mask.dtype
    return "" if dtype in LIMITS else f"dtype is {dtype}, expected float32 or float64"


def product_refusal(name: str, product: Any) -> str:
    """Return why a tensor product is not that of a convolution, or an empty string."""
    if not is_stock(product, "TensorProduct", "e3nn.o3."):
        return f"{name} is {a_type(product)}, expected an e3nn TensorProduct"
    if product.shared_weights or product.internal_weights:
        return f"{name} has weights of its own, expected one row of weights per edge"
    return _dtype_refusal(product) or forward_refusal(product)


def forward_refusal(module: Any) -> str:
    if "forward" in module.__dict__:
        return "its forward has been replaced by another package: undo that first"
    return ""


def _text(irreps: Any) -> str:
    simplify = getattr(irreps, "simplify", None)
    return str(simplify() if callable(simplify) else irreps)
