"""How symmetric contractions differentiate, to any order.

``phi(x, w, g) = <g, S(x, w)>`` is linear in w and g, and polynomial in x. Its derivative along a
direction, ``phi'(x, a; w, g)``, is the same form of another problem with input (x, a)
(:meth:`~mdcg.problem.SymmetricContractionProblem.derivative`), so all formulas close.
The double backward operator fuses ``psi = phi'(x, a; w, g) + phi(x; b, g)``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from . import contraction_operators  # noqa: F401  (defines the operators)
from .contraction_operators import contraction_problem
from .differentiable import Totals, differentiable, only, remember, remembered, tangents

__all__ = ["contraction"]

Tensor = torch.Tensor
Where = tuple[Any, ...]  # y, problem, plan

_NO_ATTRIBUTE_GRADIENT = (
    "the operator has no gradient with respect to node attributes: call "
    "mdcg.ops.symmetric_contraction, which mixes the coefficients first where that is needed"
)


@lru_cache(maxsize=512)
def _derivative(problem: str) -> str:
    return contraction_problem(problem).derivative().to_json()


def _directional(where: Where) -> Where:
    """Return what operators on (x, a) get instead of `where`."""
    y, problem, _ = where
    return y, _derivative(problem), ""  # a plan is for its own problem


class _Totals(Totals):
    """Sums of gradients of phi and of its derivative phi'."""

    def gradients(
        self, names: tuple[str, str], x: Tensor, w: Tensor, g: Tensor, where: Where
    ) -> None:
        """Add gradients of phi with respect to x and w."""
        wants = self.wants(*names)
        if any(wants):
            self.add(names, contraction_backward(x, w, g, *where, wants))

    def halves(
        self, names: tuple[str, str, str], x: Tensor, a: Tensor, w: Tensor, g: Tensor, where: Where
    ) -> None:
        """Add gradients of phi' with respect to x, a and w."""
        first, second, third = self.wants(*names)
        if first or second or third:
            z = torch.cat((x, a), -1)
            wants = [first or second, third]
            dz, dw = contraction_backward(z, w, g, *_directional(where), wants)
            if wants[0]:
                self.add(names[:2], tuple(dz.chunk(2, -1)))
            self.add(names[2:], (dw,))

    def value(self, name: str, x: Tensor, w: Tensor, where: Where) -> None:
        """Add the gradient of phi with respect to g."""
        if name in self.names:
            self.add((name,), (contraction(x, w, *where),))


# -- value ----------------------------------------------------------------------------------------


def _vjp(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
    (x, w), where = remembered(ctx)
    wants = list(ctx.needs_input_grad[:2])
    _refuse_attributes(ctx, 2)
    grads: tuple[Any, ...] = (None, None)
    if g is not None and any(wants):
        grads = only(contraction_backward(x, w, g, *where, wants), wants)
    return (*grads, *(None,) * 3)


def _jvp(ctx: Any, *moves: Tensor | None) -> Tensor | None:
    (x, w), where = remembered(ctx)
    tx, tw, ty = moves[:3]
    parts = []
    if tx is not None:
        parts.append(contraction(torch.cat((x, tx), -1), w, *_directional(where)))
    if tw is not None:
        parts.append(contraction(x, tw, *where))
    if ty is not None:
        parts.append(contraction(x, w, ty, *where[1:]))
    return sum(parts[1:], parts[0]) if parts else None


def _refuse_attributes(ctx: Any, place: int) -> None:
    if ctx.needs_input_grad[place]:
        raise NotImplementedError(_NO_ATTRIBUTE_GRADIENT)


# -- gradients ------------------------------------------------------------------------------------


def _backward_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    (x, w, g), where = remembered(ctx)
    _refuse_attributes(ctx, 3)
    a, b = (t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True))
    wants = list(ctx.needs_input_grad[:3])
    grads: tuple[Any, ...] = (None,) * 3
    if any(wants) and not (a is None and b is None):
        grads = only(contraction_double_backward(x, w, g, a, b, *where, wants), wants)
    return (*grads, *(None,) * 4)


def _backward_jvp(ctx: Any, *moves: Tensor | None) -> tuple[Tensor, ...]:
    (x, w, g), where = remembered(ctx)
    tx, tw, tg, ty = moves[:4]
    names = ("x", "w")
    total = _Totals({name for name, used in zip(names, ctx.wanted, strict=True) if used})
    if tx is not None:
        wants = [*total.wants(*names), False]
        found = contraction_double_backward(x, w, g, tx, None, *where, wants)
        total.add(names, found[:2])
    if tw is not None:
        total.gradients(("x", ""), x, tw, g, where)
    if tg is not None:
        total.gradients(names, x, w, tg, where)
    if ty is not None:
        total.gradients(names, x, w, g, (ty, *where[1:]))
    return tangents(ctx, total.found, names, x)


# -- gradients of gradients -----------------------------------------------------------------------


def _add_move_of_x(
    total: _Totals, p: Tensor, operands: tuple[Any, ...], where: Where, a_name: str, b_name: str
) -> None:
    """Add gradients of ``<p, dpsi/dx> = phi''(x, a, p; w, g) + phi'(x, p; b, g)``."""
    x, w, g, a, b = operands
    if a is not None:
        z, direction = torch.cat((x, a), -1), torch.cat((p, torch.zeros_like(p)), -1)
        wants = [any(total.wants("x", a_name)), *total.wants("w", "g")]
        if any(wants):
            here = _directional(where)
            dz, dw, dg = contraction_double_backward(z, w, g, direction, None, *here, wants)
            if wants[0]:
                total.add(("x", a_name), tuple(dz.chunk(2, -1)))
            total.add(("w", "g"), (dw, dg))
    if b is not None:
        total.halves(("x", "", b_name), x, p, b, g, where)
        total.value("g", torch.cat((x, p), -1), b, _directional(where))


def _double_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    operands, where = remembered(ctx)
    x, w, g, a, b = operands
    _refuse_attributes(ctx, 5)
    names = ("x", "w", "g", "a", "b")
    total = _Totals({n for n, need in zip(names, ctx.needs_input_grad, strict=False) if need})
    p, q, s = (t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True))
    if p is not None:
        _add_move_of_x(total, p, operands, where, "a", "b")
    if q is not None and a is not None:
        total.halves(("x", "a", ""), x, a, q, g, where)
        total.value("g", torch.cat((x, a), -1), q, _directional(where))
    if s is not None and a is not None:
        total.halves(("x", "a", "w"), x, a, w, s, where)
    if s is not None and b is not None:
        total.gradients(("x", "b"), x, b, s, where)
    return (*(total.found.get(name) for name in names), *(None,) * 4)


def _double_jvp(ctx: Any, *moves: Tensor | None) -> tuple[Tensor, ...]:
    operands, where = remembered(ctx)
    x, w, g, a, b = operands
    tx, tw, tg, ta, tb, ty = moves[:6]
    names = ("x", "w", "g")
    total = _Totals({name for name, used in zip(names, ctx.wanted, strict=True) if used})
    if tx is not None:
        _add_move_of_x(total, tx, operands, where, "", "")
    y, *rest = where
    for moved in (
        None if ta is None else (x, w, g, ta, None, y),
        None if tb is None else (x, w, g, None, tb, y),
        None if tw is None or a is None else (x, tw, g, a, None, y),
        None if tg is None else (x, w, tg, a, b, y),
        None if ty is None else (x, w, g, a, b, ty),
    ):
        if moved is None:
            continue
        # what moves is constant in itself
        still = [moved[1] is w, moved[2] is g]
        wants = [
            want and keep for want, keep in zip(total.wants(*names), [True, *still], strict=True)
        ]
        if any(wants):
            found = contraction_double_backward(*moved, *rest, wants)
            kept = tuple(n if want else "" for n, want in zip(names, wants, strict=True))
            total.add(kept, found)
    return tangents(ctx, total.found, names, x)


contraction = differentiable("symmetric_contraction", remember(2, 1, 2), _vjp, _jvp)
contraction_backward = differentiable(
    "symmetric_contraction_backward", remember(3, 1, 2), _backward_vjp, _backward_jvp
)
contraction_double_backward = differentiable(
    "symmetric_contraction_double_backward", remember(5, 1, 2), _double_vjp, _double_jvp
)
