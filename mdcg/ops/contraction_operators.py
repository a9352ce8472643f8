"""The torch operators of symmetric contractions: value, gradients, gradients of gradients.

`y` are the attributes that mix the coefficients of the species; without it every node has its own
row of `w`. How they differentiate is in :mod:`mdcg.ops.contraction_autograd`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..problem import SymmetricContractionProblem
from .contraction_kernels import cuda_contraction, host_contraction
from .differentiable import define_passes
from .kernels import Tensors

__all__ = ["contraction_problem"]

Tensor = torch.Tensor


@lru_cache(maxsize=512)
def contraction_problem(text: str) -> SymmetricContractionProblem:
    """Return the problem that an operator carries."""
    return SymmetricContractionProblem.from_json(text)


def _run(
    kind: str,
    operands: Tensors,
    cotangents: Tensors,
    where: tuple[Any, ...],
    wants: tuple[str, ...],
) -> Tensors:
    """Run the kernel of one pass where the operands are."""
    y, problem, plan = where
    y = y.contiguous() if y is not None else None
    x = operands["x"]
    if x.is_cuda:
        on_device = cuda_contraction(problem, plan, x.device.index)
        return on_device.run(kind, operands, y, cotangents, wants)
    return host_contraction(problem, plan).run(kind, operands, y, cotangents, wants)


def _shape(x: Tensor, w: Tensor, y: Tensor | None, problem: str, plan: str) -> Tensor:
    found = contraction_problem(problem)
    return x.new_empty(x.shape[0], found.channels * found.dim_out)


define_passes("symmetric_contraction", ("x", "w"), "Tensor? y, str problem, str plan", _run, _shape)
