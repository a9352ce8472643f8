"""Compare one new layer with the stock computation before a model is changed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec

import torch

from ..errors import VerificationError
from ..ops import conv
from ..problem import ConvProblem
from .copies import copy_model

#: Largest relative difference; a wrong sign or path weight gives 1e-2 and more.
LIMITS = {torch.float64: 1e-11, torch.float32: 5e-5}
_SENDER = (3, 0, 2, 2, 1, 3, 0, 2, 1)
_RECEIVER = (1, 4, 2, 0, 4, 1, 3, 4, 0)  # unsorted, with a double edge and a self-image
_NODES = 6  # node 5 has no edge


P = ParamSpec("P")
Tensor = torch.Tensor
#: ``(module, node_feats, edge_attrs, weights, sender, receiver) -> summed messages``
StockConv = Callable[[Any, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _with_gradients(probe: Callable[P, float]) -> Callable[P, float]:
    """Make ordinary tensors inside, also where the caller is in inference mode."""

    @functools.wraps(probe)
    def run(*args: P.args, **kwargs: P.kwargs) -> float:
        with torch.inference_mode(False), torch.enable_grad():
            return probe(*args, **kwargs)

    return run


@_with_gradients
def probe_conv(
    tensor_product: Any, module: Any, stock: StockConv, problem: ConvProblem, *, name: str
) -> float:
    """Return the largest relative difference of a convolution from its stock layer, in float64.

    Parameters
    ----------
    tensor_product : e3nn.o3.TensorProduct
        Tells shapes, dtype and device.
    module : torch.nn.Module
        Stock layer. It is not changed; `stock` gets a copy of it in float64.
    stock : callable
        Evaluates the layer.
    problem : ConvProblem
        Built from it.
    name : str
        Named in messages.

    Raises
    ------
    VerificationError
        Value or a gradient differs by more than rounding explains.
    """
    drawn = _draw(
        tensor_product,
        (_NODES, tensor_product.irreps_in1.dim),
        (len(_SENDER), tensor_product.irreps_in2.dim),
        (len(_SENDER), tensor_product.weight_numel),
        (_NODES, tensor_product.irreps_out.dim),
    )
    device = drawn[0].device
    sender = torch.tensor(_SENDER, device=device)
    receiver = torch.tensor(_RECEIVER, device=device)
    of_dtype = problem.with_dtype(str(drawn[0].dtype).removeprefix("torch."))
    exact = copy_model(module).to(torch.float64)

    def fused(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return conv(of_dtype, x, y, w, sender, receiver)

    def original(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return stock(exact, x, y, w, sender, receiver)

    labels = ("value", *(f"gradient of {n}" for n in ("node_feats", "edge_attrs", "weights")))
    return _compare(fused, original, drawn, labels, f"{name}: the {{}} of the generated kernel")


@_with_gradients
def probe_rows(module: Any, fused: Callable[..., Tensor], *, name: str) -> float:
    """Return the largest relative difference of a product of rows from its stock layer.

    Parameters
    ----------
    module : e3nn.o3.TensorProduct
        Stock layer with weights of its own; it is not changed.
    fused : callable
        ``(x, y, weights) -> rows``, the replacement where `y` is constant.
    name : str
        Named in messages.

    Raises
    ------
    VerificationError
        Value or a gradient differs by more than rounding explains.
    """
    x, y, g = _draw(
        module,
        (_NODES, module.irreps_in1.dim),
        (_NODES, module.irreps_in2.dim),
        (_NODES, module.irreps_out.dim),
    )
    y = y[torch.tensor((0, 1, 0, 2, 1, 0), device=y.device)]  # rows repeat, like species
    exact = copy_model(module).to(torch.float64)

    def original(x: Tensor, w: Tensor) -> Tensor:
        rows: Tensor = torch.func.functional_call(exact, {"weight": w}, (x, y.double()))
        return rows

    def new(x: Tensor, w: Tensor) -> Tensor:
        return fused(x, y, w)

    drawn = [x, module.weight.detach(), g]
    labels = ("value", "gradient of x", "gradient of weights")
    return _compare(new, original, drawn, labels, f"{name}: the {{}} of the grouped product")


def _draw(tensor_product: Any, *shapes: tuple[int, int]) -> list[Tensor]:
    generator = torch.Generator("cpu").manual_seed(20240229)
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64, device="cpu") for s in shapes]
    mask = tensor_product.output_mask
    return [value.to(device=mask.device, dtype=mask.dtype) for value in drawn]


def _compare(
    fused: Callable[..., Tensor],
    original: Callable[..., Tensor],
    drawn: Sequence[Tensor],
    labels: Sequence[str],
    what: str,
) -> float:
    """Compare value and gradients; the original is evaluated in float64."""
    *inputs, cotangent = drawn
    got, want = (
        _value_and_gradients(function, inputs, cotangent, dtype)
        for function, dtype in ((fused, cotangent.dtype), (original, torch.float64))
    )
    return relative_errors(what, zip(labels, got, want, strict=True), cotangent.dtype)


def relative_errors(
    what: str, triples: Iterable[tuple[str, Tensor, Tensor]], dtype: torch.dtype
) -> float:
    """Return the largest relative difference of (label, generated, original).

    Parameters
    ----------
    what : str
        Subject of the message, with ``{}`` where the label goes.
    triples : iterable
    dtype : torch.dtype
        Whose rounding is allowed.

    Raises
    ------
    VerificationError
        It is larger than rounding in `dtype` explains.
    """
    limit = LIMITS[dtype]
    worst = 0.0
    for label, a, b in triples:
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
    function: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    cotangent: Tensor,
    dtype: torch.dtype,
) -> list[Tensor]:
    leaves = [value.detach().clone().to(dtype).requires_grad_() for value in inputs]
    value = function(*leaves)
    return [value, *torch.autograd.grad(value, leaves, cotangent.to(dtype))]
