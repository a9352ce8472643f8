"""How the operators differentiate: backward, forward mode and vmap, to any order.

``phi(x, y, w, g) = <g, TP(x, y, w)>`` is linear in each argument, so every derivative of any order
is a sum of two maps of replaced arguments: ``TP`` itself, and the gradients of ``phi``. The double
backward operator fuses the three terms of
``psi = phi(a, y, w, g) + phi(x, b, w, g) + phi(x, y, c, g)``.

Eager calls go through ``torch.autograd.Function``, which ``torch.func`` can transform; compiled
programs see the bare operators with the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch
from torch.autograd import forward_ad

from ..codegen.spec import DERIVATIVES
from ..problem import ConvProblem
from .operators import FUNCTIONS

__all__ = ["conv", "conv_backward", "conv_double_backward", "differentiable", "only"]

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
    found: dict[str, Tensor] = {}

    def add(name: str, value: Tensor) -> None:
        found[name] = found[name] + value if name in found else value

    for (x, y, w, g), targets, plain_weight in terms:
        wants = [name is not None for name in targets[:3]]
        if any(wants):
            here = where if plain_weight else (*where[:3], _weighted_part(where[3]), where[4])
            gradients = conv_backward(x, y, w, g, *here, wants)
            for name, gradient in zip(targets, gradients, strict=False):
                if name is not None:
                    add(name, gradient)
        if targets[3] is not None:
            add(targets[3], _value(x, y, w, where, plain_weight=plain_weight))
    return found


def _save(ctx: Any, tensors: tuple[Tensor | None, ...], where: tuple[Any, ...]) -> None:
    sender, receiver, num_receivers, problem, plan = where
    ctx.save_for_backward(*tensors, sender, receiver)
    if hasattr(ctx, "save_for_forward"):
        ctx.save_for_forward(*tensors, sender, receiver)
    ctx.where = (num_receivers, problem, plan)
    ctx.set_materialize_grads(False)


def _saved(ctx: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    *tensors, sender, receiver = ctx.saved_tensors
    return tuple(tensors), (sender, receiver, *ctx.where)


def only(values: Iterable[Tensor], wants: Iterable[bool]) -> tuple[Tensor | None, ...]:
    """Return the values that are wanted, None for the others."""
    return tuple(v if want else None for v, want in zip(values, wants, strict=True))


# -- value ----------------------------------------------------------------------------------------


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _save(ctx, inputs[:3], inputs[3:8])


def _conv_vjp(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
    (x, y, w), where = _saved(ctx)
    wants = list(ctx.needs_input_grad[:3])
    grads: tuple[Any, ...] = (None, None, None)
    if g is not None and any(wants):
        grads = only(conv_backward(x, y, w, g, *where, wants), wants)
    return (*grads, *(None,) * 5)


def _conv_jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
    operands, where = _saved(ctx)
    total: Tensor | None = None
    for slot, tangent in enumerate(tangents[:3]):
        if tangent is not None:
            x, y, w = (tangent if i == slot else t for i, t in enumerate(operands))
            part = _value(x, y, w, where, plain_weight=slot != 2)
            total = part if total is None else total + part
    return total


# -- gradients ------------------------------------------------------------------------------------


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _save(ctx, inputs[:4], inputs[4:9])
    ctx.wanted = tuple(inputs[9])
    ctx.shapes = tuple(t.shape for t in output)


def _backward_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    (x, y, w, g), where = _saved(ctx)
    a, b, c = (t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True))
    wants = list(ctx.needs_input_grad[:4])
    grads: tuple[Any, ...] = (None,) * 4
    if any(wants) and not (a is None and b is None and c is None):
        grads = only(conv_double_backward(x, y, w, g, a, b, c, *where, wants), wants)
    return (*grads, *(None,) * 6)


def _backward_jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
    operands, where = _saved(ctx)
    terms: list[Term] = []
    for slot, tangent in enumerate(tangents[:4]):
        if tangent is not None:
            replaced = tuple(tangent if i == slot else t for i, t in enumerate(operands))
            targets = tuple(
                name if i < 3 and i != slot and ctx.wanted[i] else None
                for i, name in enumerate(DERIVATIVES)
            )
            terms.append((replaced, targets, slot != 2))  # type: ignore[arg-type]
    found = _sum_gradients(terms, where)
    return _tangents(ctx, found, operands[0])


def _tangents(ctx: Any, found: dict[str, Tensor], like: Tensor) -> tuple[Tensor | None, ...]:
    """One tangent per output; zeros where nothing contributes."""
    return tuple(
        found[name] if name in found else like.new_zeros(shape)
        for name, shape in zip(DERIVATIVES, ctx.shapes, strict=False)
    )


# -- gradients of gradients -----------------------------------------------------------------------


def _double_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _save(ctx, inputs[:7], inputs[7:12])
    ctx.wanted = tuple(inputs[12])
    ctx.shapes = tuple(t.shape for t in output)


def _double_vjp(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    saved, where = _saved(ctx)
    values: dict[str, Tensor | None] = dict(zip(_NAMES, saved, strict=True))
    needed = {name for name, need in zip(_NAMES, ctx.needs_input_grad, strict=False) if need}
    terms: list[Term] = []
    # derivative of psi along the cotangents, slot by slot
    for slot, name in enumerate(DERIVATIVES):
        cotangent = cotangents[slot] if ctx.wanted[slot] else None
        for term in _PSI:
            if term[slot] != name or cotangent is None:
                continue
            operands = tuple(cotangent if i == slot else values[n] for i, n in enumerate(term))
            targets = tuple(n if i != slot and n in needed else None for i, n in enumerate(term))
            if all(t is not None for t in operands):
                terms.append((operands, targets, term[2] == "w" and slot != 2))  # type: ignore[arg-type]
    found = _sum_gradients(terms, where)
    return (*(found.get(name) for name in _NAMES), *(None,) * 6)


def _double_jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
    saved, where = _saved(ctx)
    values: dict[str, Tensor | None] = dict(zip(_NAMES, saved, strict=True))
    moved = dict(zip(_NAMES, tangents[:7], strict=True))
    terms: list[Term] = []
    for term in _PSI:
        for slot, name in enumerate(term):
            operands = tuple(moved[n] if i == slot else values[n] for i, n in enumerate(term))
            targets = tuple(
                n if i != slot and n == DERIVATIVES[i] and ctx.wanted[i] else None
                for i, n in enumerate(term)
            )
            if moved[name] is not None and all(t is not None for t in operands):
                terms.append((operands, targets, term[2] == "w" and slot != 2))  # type: ignore[arg-type]
    return _tangents(ctx, _sum_gradients(terms, where), saved[0])


# -- registration ---------------------------------------------------------------------------------


def _vmap_rule(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return the vmap rule of an operator: one call per sample."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        size = info.batch_size
        samples = []
        for i in range(max(size, 1)):
            # the sum over an empty batch is a sample of zeros: it gives the result its shape
            sample = (
                (arg.select(dim, i) if size else arg.sum(dim)) if isinstance(dim, int) else arg
                for arg, dim in zip(args, in_dims, strict=True)
            )
            samples.append(operator(*sample))
        if isinstance(samples[0], torch.Tensor):
            return torch.stack(samples)[:size], 0
        stacked = tuple(torch.stack(parts)[:size] for parts in zip(*samples, strict=True))
        return stacked, (0,) * len(stacked)

    return rule


def differentiable(
    name: str, setup: Callable[..., None], vjp: Callable[..., Any], jvp: Callable[..., Any]
) -> Callable[..., Any]:
    """Give an operator its formulas, and return what eager code and ``torch.func`` call."""
    operator = getattr(torch.ops.mdcg, name).default
    functions = {kind: found[name] for kind, found in FUNCTIONS.items()}

    def call(*args: Any) -> Any:
        # a compiler traces the operator itself; it cannot look into a Function with jvp and vmap
        if torch.compiler.is_compiling():
            return operator(*args)
        if _transforms_active():
            return transformable.apply(*args)
        if torch.is_grad_enabled() or _level() >= 0 or not _unwatched(args):
            return eager.apply(*args)
        return functions[args[0].device.type](*args)

    def forward(*args: Any) -> Any:
        # the dispatcher takes 20 us, and is needed only for those who look into it
        if _unwatched(args):
            return functions[args[0].device.type](*args)
        # autograd is done with here: without the guard the operator's own rules would look again
        with cast(Any, torch)._C._AutoDispatchBelowAutograd():
            return operator(*args)

    def eager_forward(ctx: Any, *args: Any) -> Any:
        output = forward(*args)
        setup(ctx, args, output)
        return output

    rule = _vmap_rule(call)
    torch.library.register_autograd(f"mdcg::{name}", vjp, setup_context=setup)
    torch.library.register_vmap(f"mdcg::{name}", rule)
    transformable = _function(
        name, forward=forward, setup_context=setup, backward=vjp, jvp=jvp, vmap=rule
    )
    # the style with a separate setup_context costs 60 us more per call
    eager = _function(name, forward=eager_forward, backward=vjp, jvp=jvp)
    return call


def _function(name: str, **members: Callable[..., Any]) -> Any:
    namespace = {key: staticmethod(member) for key, member in members.items()}
    return cast(Any, type(name.title(), (torch.autograd.Function,), namespace))


def _always() -> bool:
    return True


def _level() -> int:
    """Return the level of forward-mode differentiation, negative outside of it."""
    level: int = forward_ad._current_level
    return level


def _unwatched(args: tuple[Any, ...]) -> bool:
    """Whether operands are plain tensors that no mode or tracer wants to see passed to an operator.

    Inside the rules of a ``torch.func`` transform operands are wrapped, and the dispatcher unwraps
    them.
    """
    internal = cast(Any, torch)._C
    if internal._len_torch_dispatch_stack() or internal._get_tracing_state() is not None:
        return False
    if internal._len_torch_function_stack():  # such as a default device, which factories would obey
        return False
    if internal._functorch.peek_interpreter_stack() is not None:
        return False
    if args[0].device.type not in FUNCTIONS:
        return False
    batched = internal._functorch.is_legacy_batchedtensor  # gradients of `is_grads_batched`
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return all(type(t) in _PLAIN and not batched(t) for t in tensors)


_PLAIN = (torch.Tensor, torch.nn.Parameter)


# as torch.autograd.Function.apply asks; a torch without it gets the slower style
_transforms_active: Callable[[], bool] = getattr(
    cast(Any, torch)._C, "_are_functorch_transforms_active", _always
)


conv = differentiable("conv", _conv_setup, _conv_vjp, _conv_jvp)
conv_backward = differentiable("conv_backward", _backward_setup, _backward_vjp, _backward_jvp)
conv_double_backward = differentiable(
    "conv_double_backward", _double_setup, _double_vjp, _double_jvp
)
