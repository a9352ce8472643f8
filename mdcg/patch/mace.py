"""The layers of MACE models that can be patched."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import UnsupportedProblemError, a_type
from ..problem import ConvProblem, FoldedTensors
from ._frameworks import is_stock
from .copies import copy_model
from .layer import (
    ACCELERATED,
    Connection,
    Convolution,
    Layer,
    forward_refusal,
    product_refusal,
)
from .probe import compare, draw
from .report import LayerReport

#: The attribute of an interaction block that makes it call ``conv_tp`` with the edge index.
HOOK = "conv_fusion"
_NODES = 7
#: Blocks whose weights depend on edges alone and are used by ``conv_tp`` alone.
_RADIAL = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
)


def find_layers(model: torch.nn.Module) -> Iterator[Layer]:
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
    """Whether the block's forward asks for ``conv_fusion``, as mace-torch writes it."""
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
        """Compare value and gradient of the features; the weights are left out."""
        from ..ops import contraction
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
        attrs[_NODES - 1] = mixed  # one node of all species at once
        matrix = torch.from_numpy(problem.combination).to(like)
        coefficients = torch.matmul(matrix, stacked_weights(layer).detach())
        of_dtype = problem.problem.with_dtype(str(like.dtype).removeprefix("torch."))
        exact = copy_model(layer).to(torch.float64)
        return compare(
            lambda x: contraction.symmetric_contraction(of_dtype, x, coefficients, attrs),
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
