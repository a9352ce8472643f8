"""Compare one fused layer with the stock computation before a model is changed."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch

from ..errors import VerificationError
from ..ops import conv
from ..problem import ConvProblem

__all__ = ["LIMITS", "probe_layer", "relative_errors"]

#: Largest relative difference; a wrong sign or path weight gives 1e-2 and more.
LIMITS = {torch.float64: 1e-11, torch.float32: 5e-5}
_SENDER = (3, 0, 2, 2, 1, 3, 0, 2, 1)
_RECEIVER = (1, 4, 2, 0, 4, 1, 3, 4, 0)  # unsorted, with a double edge and a self-image
_NODES = 6  # node 5 has no edge


def probe_layer(conv_tp: Any, problem: ConvProblem, *, name: str) -> float:
    """Return the largest relative difference from the stock layer in float64, with gradients.

    Parameters
    ----------
    conv_tp : e3nn.o3.TensorProduct
        Stock layer; it is not changed.
    problem : ConvProblem
        Built from it.
    name : str
        Named in messages.

    Raises
    ------
    VerificationError
        The difference is larger than rounding explains.
    """
    with torch.inference_mode(False), torch.enable_grad():
        got, want = _both(conv_tp, problem)
    labels = ("value", "gradient of node_feats", "gradient of edge_attrs", "gradient of weights")
    triples = zip(labels, got, want, strict=True)
    return relative_errors(name, str(problem), triples, conv_tp.output_mask.dtype)


def relative_errors(
    name: str,
    problem: str,
    triples: Iterable[tuple[str, torch.Tensor, torch.Tensor]],
    dtype: torch.dtype,
) -> float:
    """Return the largest relative difference of (label, generated, original).

    Raises
    ------
    VerificationError
        It is larger than rounding in `dtype` explains.
    """
    worst = 0.0
    limit = LIMITS[dtype]
    for label, a, b in triples:
        scale = float(b.detach().abs().max()) if b.numel() else 0.0
        error = float((a.detach().double() - b.detach()).abs().max()) if b.numel() else 0.0
        relative = error / scale if scale > 0 else error
        if not relative <= limit:  # also true for nan
            raise VerificationError(
                f"{name}: the {label} of the generated kernel differs from the stock layer by "
                f"{relative:.1e} relative, expected at most {limit:.0e} ({problem}); the model was "
                "not changed: please report this"
            )
        worst = max(worst, relative)
    return worst


def _both(conv_tp: Any, problem: ConvProblem) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return value and gradients of the generated kernel, and of the stock layer in float64."""
    dtype: torch.dtype = conv_tp.output_mask.dtype
    device: torch.device = conv_tp.output_mask.device
    generator = torch.Generator("cpu").manual_seed(20240229)
    shapes = (
        (_NODES, conv_tp.irreps_in1.dim),
        (len(_SENDER), conv_tp.irreps_in2.dim),
        (len(_SENDER), conv_tp.weight_numel),
        (_NODES, conv_tp.irreps_out.dim),
    )
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64, device="cpu") for s in shapes]
    *inputs, cotangent = (value.to(device=device, dtype=dtype) for value in drawn)
    sender = torch.tensor(_SENDER, device=device)
    receiver = torch.tensor(_RECEIVER, device=device)

    x, y, w = (value.clone().requires_grad_() for value in inputs)
    fused = conv(problem.with_dtype(str(dtype).removeprefix("torch.")), x, y, w, sender, receiver)
    got = [fused, *torch.autograd.grad(fused, (x, y, w), cotangent)]

    stock = copy.deepcopy(conv_tp).to(torch.float64)
    x, y, w = (value.double().requires_grad_() for value in inputs)
    rows = stock.forward(x[sender], y, w)  # not stock(...), which calls the user's hooks
    summed = rows.new_zeros(_NODES, rows.shape[1]).index_add(0, receiver, rows)
    return got, [summed, *torch.autograd.grad(summed, (x, y, w), cotangent.double())]
