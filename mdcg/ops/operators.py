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
from .differentiable import define, define_passes
from .graph import graph_of
from .host import host_kernels
from .kernels import Tensors

__all__: list[str] = []

Tensor = torch.Tensor


def _run(
    kind: str,
    operands: Tensors,
    cotangents: Tensors,
    where: tuple[Any, ...],
    wants: tuple[str, ...],
) -> Tensors:
    """Run the kernels of one pass where the operands are."""
    sender, receiver, num_receivers, problem, plan = where
    x = operands["x"]
    if kind == "double_backward" and len(cotangents) < 2:
        # `phi(a, y, w, g)` is constant in x
        zeros = [n for n in wants if cotangents.keys() <= {n}]
        wants = tuple(n for n in wants if n not in zeros)
        found = _run(kind, operands, cotangents, where, wants) if zeros and wants else {}
        if zeros:
            return found | {n: torch.zeros_like(operands[n]) for n in zeros}
    if x.is_cuda:
        order = graph_on_device(x, sender, receiver, num_receivers)
        deterministic = torch.are_deterministic_algorithms_enabled()
        on_device = cuda_kernels(problem, plan, x.device.index, deterministic)
        return on_device.run(kind, operands, cotangents, order, wants)
    graph = None
    if sender is not None and receiver is not None:
        graph = graph_of(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)
    return host_kernels(problem, plan).run(kind, operands, cotangents, graph, wants)


def _shape(
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


define_passes(
    "conv",
    DERIVATIVES[:3],
    "Tensor? sender, Tensor? receiver, SymInt num_receivers, str problem, str plan",
    _run,
    _shape,
)
define(
    "sorted_edges",
    "(Tensor sender, Tensor receiver, SymInt num_senders, SymInt num_receivers) -> Tensor",
    sorted_edges,
    _sorted_edges_shape,
    ("CUDA",),
)
