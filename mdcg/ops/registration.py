"""The torch operators: value, gradients, gradients of gradients, and how they differentiate.

``phi(x, y, w, g) = <g, TP(x, y, w)>`` is linear in each argument, so every derivative of every order is a sum of
the same two maps, ``TP`` and the gradients of ``phi``. Operators carry the problem as canonical JSON: they have
no state, and a compiled or exported program finds its kernels in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ..codegen.spec import DERIVATIVES
from ..problem import ConvProblem
from .graph import Graph, graph_of
from .host import host_kernels

__all__ = ["conv", "conv_backward", "conv_double_backward"]

Tensor = torch.Tensor
Tensors3 = tuple[Tensor, Tensor, Tensor]
Tensors4 = tuple[Tensor, Tensor, Tensor, Tensor]

_INDEX = "Tensor? sender, Tensor? receiver, SymInt num_receivers, str problem, str plan"


def _graph(
    x: Tensor, sender: Tensor | None, receiver: Tensor | None, num_receivers: int
) -> Graph | None:
    if sender is None or receiver is None:
        return None
    return graph_of(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)


def _named(flags: Iterable[bool], names: Iterable[str] = DERIVATIVES) -> tuple[str, ...]:
    return tuple(name for name, flag in zip(names, flags, strict=False) if flag)


def _skipped(like: Tensor) -> Tensor:
    return like.new_empty(0)


@torch.library.custom_op(
    "mdcg::conv",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor y, Tensor w, {_INDEX}) -> Tensor",
)
def conv(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    sender: Tensor | None,
    receiver: Tensor | None,
    num_receivers: int,
    problem: str,
    plan: str,
) -> Tensor:
    """Tensor product of every row, or of every edge summed on receivers."""
    graph = _graph(x, sender, receiver, num_receivers)
    return host_kernels(problem, plan).forward(x.contiguous(), y.contiguous(), w.contiguous(), graph)


@torch.library.custom_op(
    "mdcg::conv_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor y, Tensor w, Tensor g, {_INDEX}, bool[] wants) -> (Tensor, Tensor, Tensor)",
)
def conv_backward(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    g: Tensor,
    sender: Tensor | None,
    receiver: Tensor | None,
    num_receivers: int,
    problem: str,
    plan: str,
    wants: list[bool],
) -> Tensors3:
    """Gradients of ``<g, conv(x, y, w)>`` with respect to x, y, w; those not wanted are empty."""
    names = _named(wants)
    found: dict[str, Tensor] = {}
    if names:
        found = host_kernels(problem, plan).backward(
            x.contiguous(),
            y.contiguous(),
            w.contiguous(),
            g.contiguous(),
            _graph(x, sender, receiver, num_receivers),
            names,
        )
    return tuple(found.get(n, _skipped(x)) for n in DERIVATIVES[:3])  # type: ignore[return-value]


@torch.library.custom_op(
    "mdcg::conv_double_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"(Tensor x, Tensor y, Tensor w, Tensor g, Tensor? a, Tensor? b, Tensor? c, {_INDEX}, "
    "bool[] wants) -> (Tensor, Tensor, Tensor, Tensor)",
)
def conv_double_backward(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    g: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    c: Tensor | None,
    sender: Tensor | None,
    receiver: Tensor | None,
    num_receivers: int,
    problem: str,
    plan: str,
    wants: list[bool],
) -> Tensors4:
    """Gradients of ``phi(a,y,w,g) + phi(x,b,w,g) + phi(x,y,c,g)`` with respect to x, y, w, g."""
    names = _named(wants)
    cotangents = {
        name: t.contiguous() for name, t in zip(DERIVATIVES, (a, b, c), strict=False) if t is not None
    }
    operands = {
        name: t.contiguous() for name, t in zip(DERIVATIVES, (x, y, w, g), strict=True)
    }
    # a gradient exists only if another operand has a cotangent: phi(a, y, w, g) is constant in x
    possible = tuple(n for n in names if any(other != n for other in cotangents))
    found: dict[str, Tensor] = {}
    if possible:
        graph = _graph(x, sender, receiver, num_receivers)
        found = host_kernels(problem, plan).double_backward(operands, cotangents, graph, possible)
    for name in names:
        if name not in found:
            found[name] = torch.zeros_like(operands[name])
    return tuple(found.get(n, _skipped(x)) for n in DERIVATIVES)  # type: ignore[return-value]


@conv.register_fake
def _conv_fake(
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
    return x.new_empty(rows, host_kernels(problem, plan).problem.irreps_out.dim)


@conv_backward.register_fake
def _conv_backward_fake(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> Tensors3:
    wants = rest[-1]
    return tuple(  # type: ignore[return-value]
        torch.empty_like(t, memory_format=torch.contiguous_format) if want else _skipped(x)
        for t, want in zip((x, y, w), wants, strict=True)
    )


@conv_double_backward.register_fake
def _conv_double_backward_fake(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> Tensors4:
    wants = rest[-1]
    return tuple(  # type: ignore[return-value]
        torch.empty_like(t, memory_format=torch.contiguous_format) if want else _skipped(x)
        for t, want in zip((x, y, w, g), wants, strict=True)
    )


# -- derivatives ----------------------------------------------------------------------------------


def _save(ctx: Any, tensors: tuple[Tensor | None, ...], rest: tuple[Any, ...]) -> None:
    """Keep tensors and the five values that name graph and kernels."""
    sender, receiver, num_receivers, problem, plan = rest
    ctx.save_for_backward(*tensors, sender, receiver)
    ctx.where = (num_receivers, problem, plan)
    ctx.set_materialize_grads(False)


def _saved(ctx: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    *tensors, sender, receiver = ctx.saved_tensors
    return tuple(tensors), (sender, receiver, *ctx.where)


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _save(ctx, inputs[:3], inputs[3:8])


def _conv_vjp(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
    (x, y, w), where = _saved(ctx)
    wants = list(ctx.needs_input_grad[:3])
    grads: tuple[Any, ...] = (None, None, None)
    if g is not None and any(wants):
        found = conv_backward(x, y, w, g, *where, wants)
        grads = tuple(t if want else None for t, want in zip(found, wants, strict=True))
    return (*grads, None, None, None, None, None)


def _conv_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors3) -> None:
    _save(ctx, inputs[:4], inputs[4:9])
    ctx.wanted = tuple(inputs[9])


def _conv_backward_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    (x, y, w, g), where = _saved(ctx)
    a, b, c = (t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True))
    wants = list(ctx.needs_input_grad[:4])
    grads: tuple[Any, ...] = (None,) * 4
    if any(wants) and not a is b is c is None:
        found = conv_double_backward(x, y, w, g, a, b, c, *where, wants)
        grads = tuple(t if want else None for t, want in zip(found, wants, strict=True))
    return (*grads, None, None, None, None, None, None)


def _conv_double_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensors4) -> None:
    _save(ctx, inputs[:7], inputs[7:12])
    ctx.wanted = tuple(inputs[12])


# psi = phi(a,y,w,g) + phi(x,b,w,g) + phi(x,y,c,g), and its derivative along (tx, ty, tw, tg)
_PSI = (("a", "y", "w", "g"), ("x", "b", "w", "g"), ("x", "y", "c", "g"))
_PSI_ALONG = tuple(
    tuple(f"t{slot}" if i == position else name for i, name in enumerate(term))
    for position, slot in enumerate(DERIVATIVES)
    for term in _PSI
    if term[position] == slot
)


@lru_cache(maxsize=512)
def _weighted_part(problem: str) -> str:
    """Return the problem without its weightless paths, which are constant in the weights."""
    full = ConvProblem.from_json(problem)
    return replace(full, paths=tuple(p for p in full.paths if p.has_weight)).to_json()


def _conv_double_backward_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    saved, saved_where = _saved(ctx)
    names = ("x", "y", "w", "g", "a", "b", "c")
    values: dict[str, Tensor | None] = dict(zip(names, saved, strict=True))
    for slot, tensor, used in zip(DERIVATIVES, cotangents, ctx.wanted, strict=True):
        values[f"t{slot}"] = tensor if used else None
    needed = {name for name, need in zip(names, ctx.needs_input_grad, strict=False) if need}
    grads: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        grads[name] = grads[name] + value if name in grads else value

    for term in _PSI_ALONG:
        x, y, w, g = (values[name] for name in term)
        if x is None or y is None or w is None or g is None:
            continue
        where = saved_where
        if term[2] != "w":
            where = (*where[:3], _weighted_part(where[3]), where[4])
        wants = [name in needed for name in term[:3]]
        if any(wants):
            found = conv_backward(x, y, w, g, *where, wants)
            for name, value, want in zip(term, found, wants, strict=False):
                if want:
                    add(name, value)
        if term[3] in needed:
            add(term[3], conv(x, y, w, *where))
    return (*(grads.get(name) for name in names), None, None, None, None, None, None)


torch.library.register_autograd(conv, _conv_vjp, setup_context=_conv_setup)
torch.library.register_autograd(
    conv_backward, _conv_backward_vjp, setup_context=_conv_backward_setup
)
torch.library.register_autograd(
    conv_double_backward, _conv_double_backward_vjp, setup_context=_conv_double_backward_setup
)


def _over_batch(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the vmap rule of an operator: one call per sample."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        samples = [
            operator(
                *(
                    arg if dim is None or not isinstance(dim, int) else arg.select(dim, i)
                    for arg, dim in zip(args, in_dims, strict=True)
                )
            )
            for i in range(info.batch_size)
        ]
        if isinstance(samples[0], torch.Tensor):
            return torch.stack(samples), 0
        return tuple(torch.stack(parts) for parts in zip(*samples, strict=True)), (0,) * len(samples[0])

    return rule


for _operator in (conv, conv_backward, conv_double_backward):
    torch.library.register_vmap(_operator, _over_batch(_operator))
