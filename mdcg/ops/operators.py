"""The torch operators: value, gradients, and gradients of gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..problem import ConvProblem, SymmetricContractionProblem
from .autograd import Passes, Totals, define
from .contraction_kernels import cuda_contraction, host_contraction
from .cuda import cuda_kernels, graph_on_device
from .graph import graph_of, packed_length, sorted_edges
from .host import host_kernels
from .kernels import Names, Tensors

Tensor = torch.Tensor
Where = tuple[Any, ...]


@lru_cache(maxsize=512)
def _weighted_part(problem: str) -> str:
    """Return the problem without its weightless paths, which are constant in the weights."""
    full = ConvProblem.from_json(problem)
    return replace(full, paths=tuple(p for p in full.paths if p.has_weight)).to_json()


class _Conv(Passes):
    """Convolutions and tensor products, whose value ``TP(x, y, w)`` is linear in each operand."""

    def run(
        self, kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: Names
    ) -> Tensors:
        """Run the kernels of one pass on the operands' device."""
        sender, receiver, num_receivers, problem, plan = where
        x = operands["x"]
        if kind == "double_backward" and len(cotangents) < 2:
            # psi with one cotangent does not depend on that operand, as phi(a, y, w, g) on x
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
        return x.new_empty(rows, ConvProblem.from_json(problem).irreps_out.dim)

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


@lru_cache(maxsize=512)
def _problem(text: str) -> SymmetricContractionProblem:
    return SymmetricContractionProblem.from_json(text)


@lru_cache(maxsize=512)
def _derivative(problem: str) -> str:
    return _problem(problem).derivative().to_json()


def _directional(where: Where) -> Where:
    """Return `where` for the directional derivative, whose input is (x, a)."""
    y, problem, _ = where
    return y, _derivative(problem), ""  # the plan was made for another problem


class _Contraction(Passes):
    """Symmetric contractions, whose value ``S(x, w)`` is linear in w and polynomial in x.

    `y` are the attributes that mix the coefficients of the species; without it every node has its
    own row of `w`. The derivative along a direction, ``S'(x, a; w)``, is the value of another
    problem with input (x, a), so derivatives of any order are such values.
    """

    def run(
        self, kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: Names
    ) -> Tensors:
        """Run the kernel of one pass on the operands' device."""
        y, problem, plan = where
        y = y.contiguous() if y is not None else None
        x = operands["x"]
        kernels = (
            cuda_contraction(problem, plan, x.device.index)
            if x.is_cuda
            else host_contraction(problem, plan)
        )
        return kernels.run(kind, operands, y, cotangents, wants)

    @staticmethod
    def shape(*args: Any) -> Tensor:
        x, problem = args[0], _problem(args[3])
        return x.new_empty(x.shape[0], problem.channels * problem.dim_out)

    def _moved_value(
        self, place: int, direction: Tensor, operands: tuple[Tensor, ...], where: Where
    ) -> Tensor:
        if place:
            return super()._moved_value(place, direction, operands, where)
        x, w = operands
        return self.value(torch.cat((x, direction), -1), w, *_directional(where))

    def _add_moved_psi(
        self, total: Totals, place: int, direction: Tensor, operands: tuple[Any, ...], where: Where
    ) -> None:
        """With p for x: gradients of ``phi''(x, a, p; w, g) + phi'(x, p; b, g)``."""
        if place:
            super()._add_moved_psi(total, place, direction, operands, where)
            return
        x, w, g, a, b = operands
        if a is not None:
            z = torch.cat((x, a), -1)
            p = torch.cat((direction, torch.zeros_like(direction)), -1)
            wants = [any(total.wants("x", "a")), *total.wants("w", "g")]
            if any(wants):
                here = _directional(where)
                dz, dw, dg = self.double_backward(z, w, g, p, None, *here, wants)
                if wants[0]:
                    total.add(("x", "a"), tuple(dz.chunk(2, -1)))
                total.add(("w", "g"), (dw, dg))
        if b is not None:
            self._add(total, ("x", "b", "g"), (x, b, g, direction, None), where)


contraction = _Contraction(
    "symmetric_contraction",
    "xw",
    "Tensor? y, str problem, str plan",
    "the operator has no gradient with respect to node attributes: call "
    "mdcg.ops.symmetric_contraction, which mixes the coefficients first where that is needed",
).value
