"""How operators are defined, called and differentiated: one mechanism for all of them.

Operators have no state: they carry their problem as canonical JSON, so that a compiled or exported
program finds its kernels in any process. Eager calls go through ``torch.autograd.Function``, which
``torch.func`` can transform; compiled programs see the bare operators with the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.autograd import forward_ad

__all__ = ["define", "differentiable"]


def define(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    keys: Iterable[str],
) -> None:
    """Define one operator: its schema, what runs it on which devices, and what compilers see."""
    torch.library.define(f"mdcg::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in keys:
        torch.library.impl(f"mdcg::{name}", key)(function)
    torch.library.register_fake(f"mdcg::{name}", fake)


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
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[..., None],
    vjp: Callable[..., Any],
    jvp: Callable[..., Any],
) -> Callable[..., Any]:
    """Define an operator with its formulas, and return what eager code and ``torch.func`` call.

    `setup` saves the arguments; `vjp` and `jvp` multiply the Jacobian from the left, and from the
    right. The others are those of :func:`define`.
    """
    define(name, schema, function, fake, ("CPU", "CUDA"))
    operator = getattr(torch.ops.mdcg, name).default

    def call(*args: Any) -> Any:
        # a compiler traces the operator itself; it cannot look into a Function with jvp and vmap
        if torch.compiler.is_compiling():
            return operator(*args)
        if _transforms_active():
            return transformable.apply(*args)
        if torch.is_grad_enabled() or _level() >= 0 or not _unwatched(args):
            return eager.apply(*args)
        return function(*args)

    def forward(*args: Any) -> Any:
        # the dispatcher takes 20 us, and is needed only for those who look into it
        if _unwatched(args):
            return function(*args)
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


_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
    if args[0].device.type not in ("cpu", "cuda"):
        return False
    batched = internal._functorch.is_legacy_batchedtensor  # gradients of `is_grads_batched`
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return all(type(t) in _PLAIN and not batched(t) for t in tensors)


# as torch.autograd.Function.apply asks; a torch without it gets the slower style
_transforms_active: Callable[[], bool] = getattr(
    cast(Any, torch)._C, "_are_functorch_transforms_active", _always
)
