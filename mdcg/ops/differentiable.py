"""How operators are defined, called and differentiated: one mechanism for all of them.

Operators have no state: they carry their problem as canonical JSON, so that a compiled or exported
program finds its kernels in any process. Eager calls go through ``torch.autograd.Function``, which
``torch.func`` can transform; compiled programs see the bare operators with the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch.autograd import forward_ad

__all__ = [
    "Totals",
    "define",
    "differentiable",
    "gradient_shapes",
    "named",
    "on_device",
    "only",
    "remember",
    "remembered",
    "tangents",
]

Tensor = torch.Tensor

# What runs an operator, by its name.
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


# -- operators ------------------------------------------------------------------------------------


def define(
    name: str, schema: str, function: Callable[..., Any], shapes: Callable[..., Any]
) -> None:
    """Define an operator.

    ``torch.library.custom_op`` would do the same, but imports the compiler stack on the first call,
    which takes a second.

    Parameters
    ----------
    name : str
    schema : str
        Arguments and results, as torch writes them.
    function : callable
        Runs the operator on CPUs and on CUDA devices.
    shapes : callable
        Returns empty results of the same shapes, for compilers.
    """
    torch.library.define(f"mdcg::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        torch.library.impl(f"mdcg::{name}", key)(function)
    torch.library.register_fake(f"mdcg::{name}", shapes)
    _FUNCTIONS[name] = function


def gradient_shapes(count: int) -> Callable[..., tuple[Tensor, ...]]:
    """Return the shapes of an operator that returns gradients of its first `count` operands.

    Its last argument tells which are wanted; others are empty.
    """

    def shapes(*args: Any) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            if want
            else args[0].new_empty(0)
            for tensor, want in zip(args[:count], args[-1], strict=True)
        )

    return shapes


def named(flags: Iterable[bool], names: Iterable[str]) -> tuple[str, ...]:
    """Return the names whose flag is set."""
    return tuple(name for name, flag in zip(names, flags, strict=False) if flag)


def only(values: Iterable[Tensor], wants: Iterable[bool]) -> tuple[Tensor | None, ...]:
    """Return the values that are wanted, None for the others."""
    return tuple(v if want else None for v, want in zip(values, wants, strict=True))


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make the device current; it mostly is, and torch's own guard takes longer to see that."""
    if torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


# -- what formulas need ---------------------------------------------------------------------------


def remember(operands: int, tensors: int, others: int) -> Callable[..., None]:
    """Return the function that saves the arguments of an operator for its derivatives.

    Parameters
    ----------
    operands : int
        Operands that it is differentiable in; they come first.
    tensors, others : int
        Arguments after them that say where to evaluate it: tensors or None, and others. Flags of
        wanted results may follow.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        saved, end = operands + tensors, operands + tensors + others
        ctx.save_for_backward(*inputs[:saved])
        if hasattr(ctx, "save_for_forward"):
            ctx.save_for_forward(*inputs[:saved])
        ctx.operands, ctx.where = operands, inputs[saved:end]
        if len(inputs) > end:
            ctx.wanted = tuple(inputs[end])
            ctx.shapes = tuple(t.shape for t in output)
        ctx.set_materialize_grads(False)

    return setup


def remembered(ctx: Any) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
    """Return the operands that :func:`remember` saved, and where to evaluate the operator."""
    saved = tuple(ctx.saved_tensors)
    return saved[: ctx.operands], (*saved[ctx.operands :], *ctx.where)


def tangents(
    ctx: Any, found: dict[str, Tensor], names: Iterable[str], like: Tensor
) -> tuple[Tensor, ...]:
    """Return one tangent per output; zeros where nothing contributes."""
    return tuple(
        found[name] if name in found else like.new_zeros(shape)
        for name, shape in zip(names, ctx.shapes, strict=False)
    )


class Totals:
    """Adds up contributions by name; what is not asked for is dropped.

    Parameters
    ----------
    names : iterable of str
        What is asked for.

    Attributes
    ----------
    found : dict of str to torch.Tensor
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.found: dict[str, Tensor] = {}

    def wants(self, *names: str) -> list[bool]:
        """Return which of the names are asked for."""
        return [name in self.names for name in names]

    def add(self, names: Iterable[str], values: Iterable[Tensor]) -> None:
        """Add values to the sums of these names."""
        for name, value in zip(names, values, strict=True):
            if name in self.names:
                self.found[name] = self.found[name] + value if name in self.found else value


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
    """Give an operator its formulas, and return what eager code and ``torch.func`` call.

    Parameters
    ----------
    name : str
        Of an operator that :func:`define` has defined.
    setup, vjp, jvp : callable
        Save the arguments; multiply the Jacobian from the left, and from the right.
    """
    operator = getattr(torch.ops.mdcg, name).default
    function = _FUNCTIONS[name]

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
