"""The layers of MACE, NequIP and SevenNet models that can be patched.

Layers are recognised by the names of their classes, not by ``isinstance``, because models from
``.nequip.zip`` packages contain copies of the classes of NequIP and e3nn.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedProblemError, a_type
from ..ops import functional
from ..problem import ConvProblem, FoldedTensors, wigner_3j
from ._frameworks import is_stock
from .fused_irreps import FusedIrrepsConvolution
from .fused_scatter import FusedTensorProductScatter
from .fused_state import FusedState, forget_loads, watch_loads
from .models import copy_model
from .paired_weights import STOCK, defer, undo_deferral
from .probe import LIMITS, compare, draw, probe_conv, probe_rows
from .report import LEFT, REFUSED, LayerReport
from .species_product import SpeciesProduct

#: Packages whose layers are recognised, by the top-level module of their classes.
ACCELERATED = {"cuequivariance_torch": "cuEquivariance", "openequivariance": "OpenEquivariance"}
#: The attribute of a patched layer that holds the JSON text of its problem.
PROBLEM = "_mdcg_problem"


class Layer:
    """A layer of a model, patched or not. Each kind of layer has a subclass."""

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
        """Return the layer's row of a report; `problem` is the result of `make_problem`."""
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
        if not issubclass(fused, type(self.module)):  # the stock class is not among the bases
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
    """A convolution. Patching makes its radial network run once for both directions of an edge."""

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
        """Whether only this layer reads the output of the block's radial network."""
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

    MACE's ``skip_tp`` and the self-connections of NequIP and SevenNet are such layers.
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
    """Return why a tensor product cannot be part of a convolution, or an empty string."""
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


#: The attribute of an interaction block that makes it call ``conv_tp`` with the edge index.
HOOK = "conv_fusion"
_NODES = 7
#: Blocks whose weights depend only on edges, and which only ``conv_tp`` reads.
_RADIAL = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
)


def find_mace_layers(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield the convolutions, skip connections and symmetric contractions of a model."""
    for name, block in model.named_modules():
        conv_tp = getattr(block, "conv_tp", None)
        if not isinstance(conv_tp, torch.nn.Module):
            continue
        prefix = f"{name}." if name else ""
        yield MaceConvolution(f"{prefix}conv_tp", conv_tp, block)
        skip_tp = getattr(block, "skip_tp", None)
        if hasattr(skip_tp, "irreps_in2"):  # in blocks without species it is a linear layer
            yield Connection(f"{prefix}skip_tp", skip_tp)
    for name, block in model.named_modules():
        layer = getattr(block, "symmetric_contractions", None)
        if isinstance(layer, torch.nn.Module):
            prefix = f"{name}." if name else ""
            yield MaceContraction(f"{prefix}symmetric_contractions", layer)


class MaceConvolution(Convolution):
    """The ``conv_tp`` of an interaction block, which gets the edges if the block has a hook."""

    network = "conv_tp_weights"

    def refusal(self) -> str:
        conv_tp, block = self.module, self.block
        package = type(conv_tp).__module__.partition(".")[0]
        if package in ACCELERATED:
            return (
                f"already accelerated by {ACCELERATED[package]}: "
                "convert the model back to e3nn first"
            )
        hook = block.__dict__.get(HOOK, "mdcg")
        if hook != "mdcg":
            return f"conv_fusion of the block is {hook!r}, set by another package"
        refusal = product_refusal("conv_tp", conv_tp)
        if not refusal and not _has_hook(block):
            return (
                f"{type(block).__name__}.forward does not look at conv_fusion, so it cannot hand "
                "over the edge index: install mace-torch 0.3.15 or newer"
            )
        return refusal

    def stock(
        self, module: Any, x: Tensor, y: Tensor, w: Tensor, edges: Sequence[Tensor]
    ) -> Tensor:
        # not module(...), which calls users' hooks
        rows: Tensor = module.forward(x[edges[0]], y, w)
        return rows.new_zeros(len(x), rows.shape[1]).index_add(0, edges[1], rows)

    def has_own_network(self) -> bool:
        return any(is_stock(self.block, name, "mace.modules.") for name in _RADIAL)

    def fused_class(self) -> type:
        from .fused_conv import FusedConvTensorProduct

        return FusedConvTensorProduct

    def patch(self, problem: ConvProblem) -> None:
        super().patch(problem)
        setattr(self.block, HOOK, "mdcg")

    def restore(self) -> None:
        super().restore()
        self.block.__dict__.pop(HOOK, None)


def _has_hook(block: torch.nn.Module) -> bool:
    """Whether the code of the block's forward names ``conv_fusion``."""
    code = getattr(inspect.unwrap(type(block).forward), "__code__", None)
    if code is None:
        return False
    return HOOK in code.co_consts or HOOK in code.co_names


class MaceContraction(Layer):
    """The ``symmetric_contractions`` of a product block."""

    text = "_mdcg_fold"

    def refusal(self) -> str:
        layer = self.module
        if type(layer).__module__.partition(".")[0] == "cuequivariance_torch":
            return "already accelerated by cuEquivariance: convert the model back to e3nn first"
        if not is_stock(layer, "SymmetricContraction", "mace.modules."):
            return (
                f"symmetric_contractions is {a_type(layer)}, expected a "
                "SymmetricContraction of mace"
            )
        kinds = {type(part).__qualname__ for part in layer.contractions}
        if kinds - {"Contraction"} or any("forward" in p.__dict__ for p in layer.contractions):
            return f"its parts are {', '.join(sorted(kinds))}, expected mace's own Contraction"
        return forward_refusal(layer)

    def make_problem(self) -> FoldedTensors:
        from .fused_contraction import fold_contraction

        try:
            return fold_contraction(self.module)
        except (AttributeError, IndexError) as error:
            raise UnsupportedProblemError(str(error)) from error

    def describe(self, status: str, reason: str = "", problem: Any = None) -> LayerReport:
        layer = self.module
        fold: FoldedTensors | None = problem
        if fold is None and self.is_patched:
            text: str = layer._mdcg_fold
            fold = FoldedTensors.from_json(text) if text else self.make_problem()
        into, out = (str(getattr(layer, f"irreps_{end}", "")) for end in ("in", "out"))
        if fold is None:
            return LayerReport(self.name, into, "", out, 0, 0, 0, status, reason)
        paths, of = fold.combination.shape[1], fold.problem
        return LayerReport(
            self.name, into, "", out, paths, of.nnz, paths * of.channels, status, reason, of.key()
        )

    def probe(self, problem: FoldedTensors) -> float:
        """Compare the value and the gradient of the features, but not of the weights."""
        from .fused_contraction import stacked_weights

        layer, like = self.module, self.module.contractions[0].weights_max
        species, _, channels = like.shape
        x, mixed, cotangent = draw(
            like,
            (_NODES, channels, problem.problem.dim_in),
            (species,),
            (_NODES, channels * problem.problem.dim_out),
        )
        attrs = torch.eye(species).to(like)[[n * 5 % species for n in range(_NODES)]]
        attrs[_NODES - 1] = mixed  # one node with a mixture of species
        matrix = torch.from_numpy(problem.combination).to(like)
        coefficients = torch.matmul(matrix, stacked_weights(layer).detach())
        of_dtype = problem.problem.with_dtype(str(like.dtype).removeprefix("torch."))
        exact = copy_model(layer).to(torch.float64)
        return compare(
            lambda x: functional.symmetric_contraction(of_dtype, x, coefficients, attrs),
            lambda x: exact.forward(x, attrs.double()),  # not exact(...), which calls users' hooks
            [x, cotangent],
            ("value", "gradient of node_feats"),
            f"{self.name}: the {{}} of the generated kernel",
        )

    def fused_class(self) -> type:
        from .fused_contraction import FusedSymmetricContraction

        return FusedSymmetricContraction

    def restore(self) -> None:
        from .fused_contraction import FOLD_AND_MATRIX

        super().restore()
        self.module.__dict__.pop(FOLD_AND_MATRIX, None)


_PARTS = ("feature_irreps_in", "irreps_edge_attr", "irreps_mid", "instructions")
_SUBCLASSES = {
    "OpenEquivarianceTensorProductScatter": "openequivariance",
    "CuEquivarianceTensorProductScatter": "cuequivariance_torch",
}


def find_nequip_layers(model: torch.nn.Module) -> Iterator[Layer]:
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
        return module.forward(x, y, w, edges[1], edges[0])

    def has_own_network(self) -> bool:
        return is_stock(self.block, "InteractionBlock", "nequip.nn.") and hasattr(
            self.block, self.network
        )

    def fused_class(self) -> type:
        return FusedTensorProductScatter


def find_sevennet_layers(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield the convolutions and self-connections of a model."""
    for name, module in model.named_modules():
        if type(module).__name__ in ("IrrepsConvolution", FusedIrrepsConvolution.__name__):
            yield SevenNetConvolution(name, module, module)
        elif type(module).__name__ == "SelfConnectionIntro":
            yield Connection(f"{name}.fc_tensor_product", module.fc_tensor_product)


class SevenNetConvolution(Convolution):
    """An ``IrrepsConvolution``: radial network, gather, tensor product and scaled sum."""

    network = "weight_nn"

    @property
    def tensor_product(self) -> Any:
        return self.module.convolution

    def refusal(self) -> str:
        if not is_stock(self.module, "IrrepsConvolution", "sevenn.nn."):
            return f"it is {a_type(self.module)}, expected SevenNet's IrrepsConvolution"
        if self.module.is_parallel:
            return "it is part of a model for several ranks of LAMMPS"
        return product_refusal("convolution", self.tensor_product) or forward_refusal(self.module)

    def stock(
        self, module: Any, x: Tensor, y: Tensor, w: Tensor, edges: Sequence[Tensor]
    ) -> Tensor:
        rows: Tensor = module.convolution.forward(x[edges[0]], y, w)
        return rows.new_zeros(len(x), rows.shape[1]).index_add(0, edges[1], rows)

    def has_own_network(self) -> bool:
        return is_stock(self.module.weight_nn, "FullyConnectedNet", "e3nn.nn.")

    def fused_class(self) -> type:
        return FusedIrrepsConvolution
