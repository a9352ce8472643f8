"""How the operators differentiate: backward, forward mode and vmap, to any order.

``phi(x, y, w, g) = <g, TP(x, y, w)>`` is linear in each argument, so every derivative of any order
is a sum of two maps of replaced arguments: ``TP`` itself, and the gradients of ``phi``. The double
backward operator fuses the three terms of
``psi = phi(a, y, w, g) + phi(x, b, w, g) + phi(x, y, c, g)``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..codegen.common.spec import DERIVATIVES
from ..problem import ConvProblem
from . import operators  # noqa: F401  (defines the operators)
from .differentiable import Totals, differentiable, only, remember, remembered, tangents

__all__ = ["conv", "conv_backward", "conv_double_backward"]

Tensor = torch.Tensor
# operands of one phi, the name each gradient adds to (None: not needed), and whether w is a plain
# weight
Term = tuple[tuple[Tensor, Tensor, Tensor, Tensor], tuple[str | None, ...], bool]

_PSI = (("a", "y", "w", "g"), ("x", "b", "w", "g"), ("x", "y", "c", "g"))
_NAMES = ("x", "y", "w", "g", "a", "b", "c")


@lru_cache(maxsize=512)
def _weighted_part(problem: str) -> str:
    """Return the problem without its weightless paths, which are constant in the weights."""
    full = ConvProblem.from_json(problem)
    return replace(full, paths=tuple(p for p in full.paths if p.has_weight)).to_json()


def _value(
    x: Tensor, y: Tensor, w: Tensor, where: tuple[Any, ...], *, plain_weight: bool = True
) -> Tensor:
    if not plain_weight:
        where = (*where[:3], _weighted_part(where[3]), where[4])
    out: Tensor = conv(x, y, w, *where)
    return out


def _sum_gradients(terms: Iterable[Term], where: tuple[Any, ...]) -> dict[str, Tensor]:
    """Add up gradients of several phi by the names they belong to."""
    totals = Totals(_NAMES)
    for (x, y, w, g), targets, plain_weight in terms:
        wants = [name is not None for name in targets[:3]]
        if any(wants):
            here = where if plain_weight else (*where[:3], _weighted_part(where[3]), where[4])
            gradients = conv_backward(x, y, w, g, *here, wants)
            totals.add((name or "" for name in targets[:3]), gradients)
        if targets[3] is not None:
            totals.add((targets[3],), (_value(x, y, w, where, plain_weight=plain_weight),))
    return totals.found


# -- value ----------------------------------------------------------------------------------------


def _conv_vjp(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
    (x, y, w), where = remembered(ctx)
    wants = list(ctx.needs_input_grad[:3])
    grads: tuple[Any, ...] = (None, None, None)
    if g is not None and any(wants):
        grads = only(conv_backward(x, y, w, g, *where, wants), wants)
    return (*grads, *(None,) * 5)


def _conv_jvp(ctx: Any, *moved: Tensor | None) -> Tensor | None:
    operands, where = remembered(ctx)
    total: Tensor | None = None
    for k, tangent in enumerate(moved[:3]):
        if tangent is not None:
            x, y, w = (tangent if i == k else t for i, t in enumerate(operands))
            part = _value(x, y, w, where, plain_weight=k != 2)
            total = part if total is None else total + part
    return total


# -- gradients ------------------------------------------------------------------------------------


def _backward_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    (x, y, w, g), where = remembered(ctx)
    a, b, c = (t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True))
    wants = list(ctx.needs_input_grad[:4])
    grads: tuple[Any, ...] = (None,) * 4
    if any(wants) and not (a is None and b is None and c is None):
        grads = only(conv_double_backward(x, y, w, g, a, b, c, *where, wants), wants)
    return (*grads, *(None,) * 6)


def _backward_jvp(ctx: Any, *moved: Tensor | None) -> tuple[Tensor | None, ...]:
    operands, where = remembered(ctx)
    terms: list[Term] = []
    for k, tangent in enumerate(moved[:4]):
        if tangent is not None:
            replaced = tuple(tangent if i == k else t for i, t in enumerate(operands))
            targets = tuple(
                name if i < 3 and i != k and ctx.wanted[i] else None
                for i, name in enumerate(DERIVATIVES)
            )
            terms.append((replaced, targets, k != 2))  # type: ignore[arg-type]
    found = _sum_gradients(terms, where)
    return tangents(ctx, found, DERIVATIVES, operands[0])


# -- gradients of gradients -----------------------------------------------------------------------


def _double_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    saved, where = remembered(ctx)
    values: dict[str, Tensor | None] = dict(zip(_NAMES, saved, strict=True))
    needed = {name for name, need in zip(_NAMES, ctx.needs_input_grad, strict=False) if need}
    terms: list[Term] = []
    # derivative of psi along the cotangents, operand by operand
    for k, name in enumerate(DERIVATIVES):
        cotangent = cotangents[k] if ctx.wanted[k] else None
        for term in _PSI:
            if term[k] != name or cotangent is None:
                continue
            operands = tuple(cotangent if i == k else values[n] for i, n in enumerate(term))
            targets = tuple(n if i != k and n in needed else None for i, n in enumerate(term))
            if all(t is not None for t in operands):
                terms.append((operands, targets, term[2] == "w" and k != 2))  # type: ignore[arg-type]
    found = _sum_gradients(terms, where)
    return (*(found.get(name) for name in _NAMES), *(None,) * 6)


def _double_jvp(ctx: Any, *moved: Tensor | None) -> tuple[Tensor | None, ...]:
    saved, where = remembered(ctx)
    values: dict[str, Tensor | None] = dict(zip(_NAMES, saved, strict=True))
    directions = dict(zip(_NAMES, moved[:7], strict=True))
    terms: list[Term] = []
    for term in _PSI:
        for k, name in enumerate(term):
            operands = tuple(directions[n] if i == k else values[n] for i, n in enumerate(term))
            targets = tuple(
                n if i != k and n == DERIVATIVES[i] and ctx.wanted[i] else None
                for i, n in enumerate(term)
            )
            if directions[name] is not None and all(t is not None for t in operands):
                terms.append((operands, targets, term[2] == "w" and k != 2))  # type: ignore[arg-type]
    return tangents(ctx, _sum_gradients(terms, where), DERIVATIVES, saved[0])


conv = differentiable("conv", remember(3, 2, 3), _conv_vjp, _conv_jvp)
conv_backward = differentiable("conv_backward", remember(4, 2, 3), _backward_vjp, _backward_jvp)
conv_double_backward = differentiable(
    "conv_double_backward", remember(7, 2, 3), _double_vjp, _double_jvp
)
