"""The torch operators of symmetric contractions: value, gradients, gradients of gradients.

`y` are the attributes that mix the coefficients of the species; without it every node has its own
row of `w`. How they differentiate is in :mod:`mdcg.ops.contraction_autograd`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from ..problem import SymmetricContractionProblem
from .contraction_kernels import cuda_contraction, host_contraction
from .differentiable import define, gradient_shapes, named, on_device
from .kernels import Tensors

__all__ = ["contraction_problem"]

Tensor = torch.Tensor
_OPERANDS = ("x", "w", "g")
_WHERE = "Tensor? y, str problem, str plan"


@lru_cache(maxsize=512)
def contraction_problem(text: str) -> SymmetricContractionProblem:
    """Return the problem that an operator carries."""
    return SymmetricContractionProblem.from_json(text)


def _run(
    kind: str,
    operands: Tensors,
    cotangents: Tensors,
    where: tuple[Any, ...],
    wants: Iterable[str] = (),
) -> Tensors:
    """Run the kernel of one pass where the operands are."""
    y, problem, plan = where
    operands = {name: tensor.contiguous() for name, tensor in operands.items()}
    cotangents = {name: tensor.contiguous() for name, tensor in cotangents.items()}
    y = y.contiguous() if y is not None else None
    x, wants = operands["x"], tuple(wants)
    if x.is_cuda:
        with on_device(x.device):
            kernels = cuda_contraction(problem, plan, x.device.index)
            return kernels.run(kind, operands, y, cotangents, wants)
    return host_contraction(problem, plan).run(kind, operands, y, cotangents, wants)


def _contraction(x: Tensor, w: Tensor, *where: Any) -> Tensor:
    return _run("forward", {"x": x, "w": w}, {}, where)["out"]


def _backward(x: Tensor, w: Tensor, g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *where, wants = rest
    names = named(wants, _OPERANDS)
    operands = {"x": x, "w": w, "g": g}
    found = _run("backward", operands, {}, tuple(where), names) if names else {}
    return tuple(found[n] if n in found else x.new_empty(0) for n in ("x", "w"))


def _double_backward(
    x: Tensor, w: Tensor, g: Tensor, a: Tensor | None, b: Tensor | None, *rest: Any
) -> tuple[Tensor, ...]:
    *where, wants = rest
    names = named(wants, _OPERANDS)
    cotangents = {name: t for name, t in (("x", a), ("w", b)) if t is not None}
    operands = {"x": x, "w": w, "g": g}
    found = _run("double_backward", operands, cotangents, tuple(where), names) if names else {}
    return tuple(found[n] if n in found else x.new_empty(0) for n in _OPERANDS)


def _contraction_shape(x: Tensor, w: Tensor, y: Tensor | None, problem: str, plan: str) -> Tensor:
    found = contraction_problem(problem)
    return x.new_empty(x.shape[0], found.channels * found.dim_out)


define(
    "symmetric_contraction",
    f"(Tensor x, Tensor w, {_WHERE}) -> Tensor",
    _contraction,
    _contraction_shape,
)
define(
    "symmetric_contraction_backward",
    f"(Tensor x, Tensor w, Tensor g, {_WHERE}, bool[] wants) -> (Tensor, Tensor)",
    _backward,
    gradient_shapes(2),
)
define(
    "symmetric_contraction_double_backward",
    f"(Tensor x, Tensor w, Tensor g, Tensor? a, Tensor? b, {_WHERE}, bool[] wants) -> "
    "(Tensor, Tensor, Tensor)",
    _double_backward,
    gradient_shapes(3),
)
