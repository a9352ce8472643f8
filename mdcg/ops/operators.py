"""The torch operators of convolutions: value, gradients, gradients of gradients.

How they differentiate is in :mod:`mdcg.ops.autograd`.
"""

from __future__ import annotations

from typing import Any

import torch

from ..codegen.common.spec import DERIVATIVES
from ..problem import ConvProblem
from .cuda import cuda_kernels, graph_on_device
from .cuda_graph import packed_length, sorted_edges
from .differentiable import define, gradient_shapes, named, on_device
from .graph import graph_of
from .host import host_kernels
from .kernels import Tensors

__all__: list[str] = []

Tensor = torch.Tensor
Where = tuple[Tensor | None, Tensor | None, int, str, str]

_WHERE = "Tensor? sender, Tensor? receiver, SymInt num_receivers, str problem, str plan"


def _run(
    kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: tuple[str, ...] = ()
) -> Tensors:
    """Run the kernels of one pass where the operands are."""
    sender, receiver, num_receivers, problem, plan = where
    x = operands["x"]
    if x.is_cuda:
        with on_device(x.device):
            order = graph_on_device(x, sender, receiver, num_receivers)
            deterministic = torch.are_deterministic_algorithms_enabled()
            kernels = cuda_kernels(problem, plan, x.device.index, deterministic)
            return kernels.run(kind, operands, cotangents, order, wants)
    graph = None
    if sender is not None and receiver is not None:
        graph = graph_of(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)
    operands = {name: tensor.contiguous() for name, tensor in operands.items()}
    if cotangents:
        cotangents = {name: tensor.contiguous() for name, tensor in cotangents.items()}
    return host_kernels(problem, plan).run(kind, operands, cotangents, graph, wants)


def _conv(x: Tensor, y: Tensor, w: Tensor, *where: Any) -> Tensor:
    """Tensor product of every row, or of every edge summed on receivers."""
    return _run("forward", {"x": x, "y": y, "w": w}, {}, where)["out"]


def _conv_backward(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Gradients of ``<g, conv(x, y, w)>`` with respect to x, y, w; those not wanted are empty."""
    *where, wants = rest
    names = named(wants, DERIVATIVES)
    found: Tensors = {}
    if names:
        found = _run("backward", {"x": x, "y": y, "w": w, "g": g}, {}, tuple(where), names)
    return tuple(found[n] if n in found else x.new_empty(0) for n in DERIVATIVES[:3])


def _conv_double_backward(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    g: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    *rest: Any,
) -> tuple[Tensor, ...]:
    """Gradients of ``phi(a,y,w,g) + phi(x,b,w,g) + phi(x,y,c,g)`` with respect to x, y, w, g."""
    *where, wants = rest
    names = named(wants, DERIVATIVES)
    cotangents = {n: t for n, t in zip(DERIVATIVES, (a, b, c), strict=False) if t is not None}
    operands = {"x": x, "y": y, "w": w, "g": g}
    # others are zero: `phi(a, y, w, g)` is constant in x
    possible = tuple(n for n in names if any(other != n for other in cotangents))
    found: Tensors = {}
    if possible:
        found = _run("double_backward", operands, cotangents, tuple(where), possible)
    found |= {n: torch.zeros_like(operands[n]) for n in names if n not in found}
    return tuple(found[n] if n in found else x.new_empty(0) for n in DERIVATIVES)


def _conv_shape(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    sender: Tensor | None,
    receiver: Tensor | None,
    num_receivers: int,
    problem: str,
    plan: str,
) -> Tensor:
    rows = x.shape[0] if sender is None else num_receivers
    return x.new_empty(rows, ConvProblem.from_json(problem).irreps_out.dim)


def _sorted_edges_shape(
    sender: Tensor, receiver: Tensor, num_senders: int, num_receivers: int
) -> Tensor:
    length = packed_length(sender.shape[0], num_receivers)
    return sender.new_empty(length, dtype=torch.int32)


define("conv", f"(Tensor x, Tensor y, Tensor w, {_WHERE}) -> Tensor", _conv, _conv_shape)
define(
    "conv_backward",
    f"(Tensor x, Tensor y, Tensor w, Tensor g, {_WHERE}, bool[] wants) -> (Tensor, Tensor, Tensor)",
    _conv_backward,
    gradient_shapes(3),
)
define(
    "conv_double_backward",
    f"(Tensor x, Tensor y, Tensor w, Tensor g, Tensor? a, Tensor? b, Tensor? c, {_WHERE}, "
    "bool[] wants) -> (Tensor, Tensor, Tensor, Tensor)",
    _conv_double_backward,
    gradient_shapes(4),
)
# of CUDA devices alone
torch.library.define(
    "mdcg::sorted_edges",
    "(Tensor sender, Tensor receiver, SymInt num_senders, SymInt num_receivers) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.impl("mdcg::sorted_edges", "CUDA")(sorted_edges)
torch.library.register_fake("mdcg::sorted_edges", _sorted_edges_shape)
