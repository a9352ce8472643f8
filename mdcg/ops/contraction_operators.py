"""The torch operators of symmetric contractions: value, gradients, gradients of gradients.

Like those of convolutions they carry the problem as canonical JSON and have no state. `y` are the
attributes that mix the coefficients of the species; without it every node has its own row of `w`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ..problem import SymmetricContractionProblem
from .contraction_cuda import cuda_contraction
from .contraction_host import host_contraction
from .operators import implements, implements_on_cuda, named, on_device

__all__ = ["contraction_problem"]

Tensor = torch.Tensor
_OPERANDS = ("x", "w", "g")
_TAIL = "Tensor? y, str problem, str plan"


@lru_cache(maxsize=512)
def contraction_problem(text: str) -> SymmetricContractionProblem:
    """Return the problem that an operator carries."""
    return SymmetricContractionProblem.from_json(text)


def _run(
    kind: str,
    operands: dict[str, Tensor],
    y: Tensor | None,
    cotangents: dict[str, Tensor],
    problem: str,
    plan: str,
    wants: tuple[str, ...],
) -> dict[str, Tensor]:
    operands = {name: tensor.contiguous() for name, tensor in operands.items()}
    cotangents = {name: tensor.contiguous() for name, tensor in cotangents.items()}
    y = y.contiguous() if y is not None else None
    x = operands["x"]
    if x.is_cuda:
        with on_device(x.device):
            kernels = cuda_contraction(problem, plan, x.device.index)
            return kernels.run(kind, operands, y, cotangents, wants)
    return host_contraction(problem, plan).run(kind, operands, y, cotangents, wants)


@implements_on_cuda("symmetric_contraction")
@implements("symmetric_contraction", f"(Tensor x, Tensor w, {_TAIL}) -> Tensor")
def _contraction(x: Tensor, w: Tensor, y: Tensor | None, problem: str, plan: str) -> Tensor:
    return _run("forward", {"x": x, "w": w}, y, {}, problem, plan, ())["out"]


@implements_on_cuda("symmetric_contraction_backward")
@implements(
    "symmetric_contraction_backward",
    f"(Tensor x, Tensor w, Tensor g, {_TAIL}, bool[] wants) -> (Tensor, Tensor)",
)
def _backward(
    x: Tensor, w: Tensor, g: Tensor, y: Tensor | None, problem: str, plan: str, wants: list[bool]
) -> tuple[Tensor, Tensor]:
    names = named(wants, _OPERANDS)
    found: dict[str, Tensor] = {}
    if names:
        found = _run("backward", {"x": x, "w": w, "g": g}, y, {}, problem, plan, names)
    empty = x.new_empty(0)
    return found.get("x", empty), found.get("w", empty.clone())


@implements_on_cuda("symmetric_contraction_double_backward")
@implements(
    "symmetric_contraction_double_backward",
    f"(Tensor x, Tensor w, Tensor g, Tensor? a, Tensor? b, {_TAIL}, bool[] wants) -> "
    "(Tensor, Tensor, Tensor)",
)
def _double_backward(
    x: Tensor,
    w: Tensor,
    g: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    y: Tensor | None,
    problem: str,
    plan: str,
    wants: list[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    names = named(wants, _OPERANDS)
    cotangents = {name: t for name, t in (("x", a), ("w", b)) if t is not None}
    found: dict[str, Tensor] = {}
    if names:
        operands = {"x": x, "w": w, "g": g}
        found = _run("double_backward", operands, y, cotangents, problem, plan, names)
    one, two, three = (found.get(n, x.new_empty(0)) for n in ("x", "w", "g"))
    return one, two, three


# -- shapes, for compilers ------------------------------------------------------------------------


def _contraction_fake(x: Tensor, w: Tensor, y: Tensor | None, problem: str, plan: str) -> Tensor:
    found = contraction_problem(problem)
    return x.new_empty(x.shape[0], found.channels * found.dim_out)


def _gradients_fake(*operands: Tensor, wants: list[bool]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty_like(t, memory_format=torch.contiguous_format)
        if want
        else operands[0].new_empty(0)
        for t, want in zip(operands, wants, strict=True)
    )


def _backward_fake(x: Tensor, w: Tensor, g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _gradients_fake(x, w, wants=rest[-1])


def _double_backward_fake(x: Tensor, w: Tensor, g: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _gradients_fake(x, w, g, wants=rest[-1])


for _name, _fake in (
    ("symmetric_contraction", _contraction_fake),
    ("symmetric_contraction_backward", _backward_fake),
    ("symmetric_contraction_double_backward", _double_backward_fake),
):
    torch.library.register_fake(f"mdcg::{_name}", _fake)
