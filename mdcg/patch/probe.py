"""Compares a patched layer with the stock layer before a model is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..errors import VerificationError
from ..ops import conv
from ..problem import ConvProblem
from .models import copy_model

#: Largest relative difference; a wrong sign or path weight gives 1e-2 and more.
LIMITS = {torch.float64: 1e-11, torch.float32: 5e-5}
_SENDER = (3, 0, 2, 2, 1, 3, 0, 2, 1)
_RECEIVER = (1, 4, 2, 0, 4, 1, 3, 4, 0)  # unsorted, with a double edge and a self-image
_NODES = 6  # node 5 has no edge


Tensor = torch.Tensor
#: ``(module, node_feats, edge_attrs, weights, (sender, receiver)) -> summed messages``
StockConv = Callable[[Any, Tensor, Tensor, Tensor, Sequence[Tensor]], Tensor]


def probe_conv(
    tensor_product: Any, module: Any, stock: StockConv, problem: ConvProblem, *, name: str
) -> float:
    """Return the largest relative difference of a convolution from its stock layer.

    The stock layer is evaluated through `stock`, on a copy of `module` in float64. `tensor_product`
    has the shapes, dtype and device.
    """
    drawn = draw(
        tensor_product.output_mask,
        (_NODES, tensor_product.irreps_in1.dim),
        (len(_SENDER), tensor_product.irreps_in2.dim),
        (len(_SENDER), tensor_product.weight_numel),
        (_NODES, tensor_product.irreps_out.dim),
    )
    edges = [torch.tensor(ends, device=drawn[0].device) for ends in (_SENDER, _RECEIVER)]
    of_dtype = problem.with_dtype(str(drawn[0].dtype).removeprefix("torch."))
    exact = copy_model(module).to(torch.float64)
    return compare(
        lambda x, y, w: conv(of_dtype, x, y, w, *edges),
        lambda x, y, w: stock(exact, x, y, w, edges),
        drawn,
        ("value", *(f"gradient of {n}" for n in ("node_feats", "edge_attrs", "weights"))),
        f"{name}: the {{}} of the generated kernel",
    )


def probe_rows(module: Any, fused: Callable[..., Tensor], *, name: str) -> float:
    """Return the largest relative difference of a product of rows from its stock layer.

    The stock layer `module` owns its weights. `fused` is its replacement ``(x, y, weights)``, with
    constant `y`.
    """
    x, y, g = draw(
        module.output_mask,
        (_NODES, module.irreps_in1.dim),
        (_NODES, module.irreps_in2.dim),
        (_NODES, module.irreps_out.dim),
    )
    y = y[torch.tensor((0, 1, 0, 2, 1, 0), device=y.device)]  # rows repeat, like species
    exact = copy_model(module).to(torch.float64)
    return compare(
        lambda x, w: fused(x, y, w),
        lambda x, w: torch.func.functional_call(exact, {"weight": w}, (x, y.double())),
        [x, module.weight.detach(), g],
        ("value", "gradient of x", "gradient of weights"),
        f"{name}: the {{}} of the grouped product",
    )


def draw(like: Tensor, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Return random numbers with a tensor's dtype and device, the same in every call."""
    generator = torch.Generator("cpu").manual_seed(20240229)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64, device="cpu") for s in shapes]
    return [value.to(device=like.device, dtype=like.dtype) for value in drawn]


def compare(
    fused: Callable[..., Tensor],
    original: Callable[..., Tensor],
    drawn: Sequence[Tensor],
    labels: Sequence[str],
    what: str,
) -> float:
    """Return the largest relative difference of value and gradients of two functions.

    `drawn` has the arguments and then the cotangent; `original` is evaluated in float64. `what` is
    the subject of the error message, with ``{}`` in place of one of the `labels`.
    """
    *inputs, cotangent = drawn
    limit = LIMITS[cotangent.dtype]
    got, want = (
        _value_and_gradients(function, inputs, cotangent, dtype)
        for function, dtype in ((fused, cotangent.dtype), (original, torch.float64))
    )
    worst = 0.0
    for label, a, b in zip(labels, got, want, strict=True):
        scale = float(b.detach().abs().max()) if b.numel() else 0.0
        error = float((a.detach().double() - b.detach()).abs().max()) if b.numel() else 0.0
        relative = error / scale if scale > 0 else error
        if not relative <= limit:  # also true for nan
            raise VerificationError(
                f"{what.format(label)} differs from the stock layer by {relative:.1e} "
                f"relative, expected at most {limit:.0e}; the model was not changed: "
                "please report this"
            )
        worst = max(worst, relative)
    return worst


def _value_and_gradients(
    function: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    leaves = [value.detach().clone().to(dtype).requires_grad_() for value in inputs]
    value = function(*leaves)
    return [value, *torch.autograd.grad(value, leaves, cotangent.to(dtype))]
