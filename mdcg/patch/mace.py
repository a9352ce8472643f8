"""The layers of MACE models that can be patched."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from ..errors import a_type
from ..problem import ConvProblem
from .connections import Connection
from .layer import ACCELERATED, PROBLEM, Layer, is_stock, stock_e3nn
from .mace_products import find_contractions
from .probe import LIMITS, probe_conv

#: Blocks whose weights depend on edges alone and are used by ``conv_tp`` alone.
_RADIAL = (
    "RealAgnosticInteractionBlock",
    "RealAgnosticResidualInteractionBlock",
    "RealAgnosticDensityInteractionBlock",
    "RealAgnosticDensityResidualInteractionBlock",
)


def find_layers(model: torch.nn.Module) -> Iterator[Layer]:
    """Yield convolution and skip connection of interaction blocks, contractions of products."""
    for name, block in model.named_modules():
        conv_tp = getattr(block, "conv_tp", None)
        if not isinstance(conv_tp, torch.nn.Module):
            continue
        prefix = f"{name}." if name else ""
        yield MaceConvolution(f"{prefix}conv_tp", conv_tp, block)
        skip_tp = getattr(block, "skip_tp", None)
        if hasattr(skip_tp, "irreps_in2"):  # in blocks without species it is a linear layer
            yield Connection(f"{prefix}skip_tp", skip_tp)
    yield from find_contractions(model)


class MaceConvolution(Layer):
    """The ``conv_tp`` of an interaction block, which passes the edges on if a hook is set.

    Parameters
    ----------
    name : str
    module : e3nn.o3.TensorProduct
    block : torch.nn.Module
        The interaction block.
    """

    def __init__(self, name: str, module: Any, block: torch.nn.Module) -> None:
        super().__init__(name, module)
        self.block = block

    def refusal(self) -> str:
        """Return why the layer cannot be patched, or an empty string."""
        conv_tp, block = self.module, self.block
        room = type(conv_tp).__module__.partition(".")[0]
        if room in ACCELERATED:
            return (
                f"already accelerated by {ACCELERATED[room]}: convert the model back to e3nn first"
            )
        if type(conv_tp) is not stock_e3nn("TensorProduct"):
            return f"conv_tp is {a_type(conv_tp)}, expected an e3nn TensorProduct"
        if "forward" in conv_tp.__dict__:
            return "conv_tp has had its forward replaced by another package: undo that first"
        hook = block.__dict__.get("conv_fusion", "mdcg")
        if hook != "mdcg":
            return f"conv_fusion of the block is {hook!r}, set by another package"
        if conv_tp.shared_weights or conv_tp.internal_weights:
            return "conv_tp has weights of its own, expected one row of weights per edge"
        if conv_tp.output_mask.dtype not in LIMITS:
            return f"dtype is {conv_tp.output_mask.dtype}, expected float32 or float64"
        if not _has_hook(block):
            return (
                f"{type(block).__name__}.forward does not look at conv_fusion, so it cannot hand "
                "over the edge index: install mace-torch 0.3.15 or newer"
            )
        return ""

    def probe(self, problem: ConvProblem) -> float:
        """Compare value and gradients of the convolution."""

        def stock(
            conv_tp: Any,
            x: torch.Tensor,
            y: torch.Tensor,
            w: torch.Tensor,
            sender: torch.Tensor,
            receiver: torch.Tensor,
        ) -> torch.Tensor:
            rows: torch.Tensor = conv_tp.forward(
                x[sender], y, w
            )  # not conv_tp(...), which calls users' hooks
            return rows.new_zeros(len(x), rows.shape[1]).index_add(0, receiver, rows)

        return probe_conv(self.module, self.module, stock, problem, name=self.name)

    def patch(self, problem: ConvProblem) -> None:
        """Change the class of ``conv_tp`` and set the hook of its block."""
        from .fused_conv import HOOK, HOOK_VALUE, FusedConvTensorProduct
        from .paired_weights import defer

        setattr(self.module, PROBLEM, problem.to_json())
        self.module.__class__ = FusedConvTensorProduct
        self.module._remember()
        setattr(self.block, HOOK, HOOK_VALUE)
        if any(is_stock(self.block, name, "mace.modules.") for name in _RADIAL):
            defer(self.block.conv_tp_weights)

    def restore(self) -> None:
        """Give ``conv_tp`` its class back and remove the hook."""
        from .fused_conv import HOOK, o3
        from .paired_weights import undo_deferral

        undo_deferral(getattr(self.block, "conv_tp_weights", None))
        self.module.__class__ = o3.TensorProduct
        self.module.__dict__.pop(PROBLEM, None)
        self.block.__dict__.pop(HOOK, None)


def _has_hook(block: torch.nn.Module) -> bool:
    """Whether the block's forward asks for ``conv_fusion``, as mace-torch writes it."""
    code = getattr(inspect.unwrap(type(block).forward), "__code__", None)
    if code is None:
        return False
    return "conv_fusion" in code.co_consts or "conv_fusion" in code.co_names
