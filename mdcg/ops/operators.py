"""The torch operators of convolutions: value, gradients, gradients of gradients.

The value ``TP(x, y, w)`` is linear in each operand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..problem import ConvProblem
from .autograd import Passes
from .cuda import cuda_kernels, graph_on_device
from .cuda_graph import packed_length, sorted_edges
from .differentiable import define
from .graph import graph_of
from .host import host_kernels
from .kernels import Names, Tensors

__all__ = ["conv", "conv_backward"]

Tensor = torch.Tensor
Where = tuple[Any, ...]  # sender, receiver, num_receivers, problem, plan


@lru_cache(maxsize=512)
def _weighted_part(problem: str) -> str:
    """Return the problem without its weightless paths, which are constant in the weights."""
    full = ConvProblem.from_json(problem)
    return replace(full, paths=tuple(p for p in full.paths if p.has_weight)).to_json()


class _Conv(Passes):
    def run(
        self, kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: Names
    ) -> Tensors:
        """Run the kernels of one pass where the operands are."""
        sender, receiver, num_receivers, problem, plan = where
        x = operands["x"]
        if kind == "double_backward" and len(cotangents) < 2:
            # `phi(a, y, w, g)` is constant in x
            zeros = [n for n in wants if cotangents.keys() <= {n}]
            wants = tuple(n for n in wants if n not in zeros)
            found = self.run(kind, operands, cotangents, where, wants) if zeros and wants else {}
            if zeros:
                return found | {n: torch.zeros_like(operands[n]) for n in zeros}
        if x.is_cuda:
            order = graph_on_device(x, sender, receiver, num_receivers)
            deterministic = torch.are_deterministic_algorithms_enabled()
            on_device = cuda_kernels(problem, plan, x.device.index, deterministic)
            return on_device.run(kind, operands, cotangents, order, wants)
        graph = None
        if sender is not None and receiver is not None:
            graph = graph_of(sender, receiver, x.shape[0], num_receivers)
        return host_kernels(problem, plan).run(kind, operands, cotangents, graph, wants)

    @staticmethod
    def shape(*args: Any) -> Tensor:
        x, _, _, sender, _, num_receivers, problem, _ = args
        rows = x.shape[0] if sender is None else num_receivers
        found: Tensor = x.new_empty(rows, ConvProblem.from_json(problem).irreps_out.dim)
        return found

    def _where(self, place: int, where: Where) -> Where:
        return (*where[:3], _weighted_part(where[3]), where[4]) if place == 2 else where


def _sorted_edges_shape(
    sender: Tensor, receiver: Tensor, num_senders: int, num_receivers: int
) -> Tensor:
    length = packed_length(sender.shape[0], num_receivers)
    return sender.new_empty(length, dtype=torch.int32)


_passes = _Conv(
    "conv", "xyw", "Tensor? sender, Tensor? receiver, SymInt num_receivers, str problem, str plan"
)
conv, conv_backward = _passes.value, _passes.backward
define(
    "sorted_edges",
    "(Tensor sender, Tensor receiver, SymInt num_senders, SymInt num_receivers) -> Tensor",
    sorted_edges,
    _sorted_edges_shape,
    ("CUDA",),
)
