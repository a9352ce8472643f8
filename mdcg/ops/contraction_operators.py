"""The torch operators of symmetric contractions: value, gradients, gradients of gradients.

`y` are the attributes that mix the coefficients of the species; without it every node has its own
row of `w`. The value ``S(x, w)`` is linear in w and polynomial in x. Its derivative along a
direction, ``S'(x, a; w)``, is the value of another problem with input (x, a)
(:meth:`~mdcg.problem.SymmetricContractionProblem.derivative`), so all formulas close.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..problem import SymmetricContractionProblem
from .autograd import Passes, Totals
from .contraction_kernels import cuda_contraction, host_contraction
from .kernels import Names, Tensors

__all__ = ["contraction"]

Tensor = torch.Tensor
Where = tuple[Any, ...]  # y, problem, plan


@lru_cache(maxsize=512)
def _problem(text: str) -> SymmetricContractionProblem:
    return SymmetricContractionProblem.from_json(text)


@lru_cache(maxsize=512)
def _derivative(problem: str) -> str:
    return _problem(problem).derivative().to_json()


def _directional(where: Where) -> Where:
    """Return what operators on (x, a) get instead of `where`."""
    y, problem, _ = where
    return y, _derivative(problem), ""  # a plan is for its own problem


class _Contraction(Passes):
    def run(
        self, kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: Names
    ) -> Tensors:
        """Run the kernel of one pass where the operands are."""
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
        found: Tensor = x.new_empty(x.shape[0], problem.channels * problem.dim_out)
        return found

    def _moved_value(
        self, place: int, direction: Tensor, operands: tuple[Tensor, ...], where: Where
    ) -> Tensor:
        if place:
            return super()._moved_value(place, direction, operands, where)
        x, w = operands
        found: Tensor = self.value(torch.cat((x, direction), -1), w, *_directional(where))
        return found

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
