"""How operators are defined, called and differentiated: one mechanism for all of them.

Operators have no state: they carry their problem as canonical JSON, so that a compiled or exported
program finds its kernels in any process. Eager calls go through ``torch.autograd.Function``, which
``torch.func`` can transform; compiled programs see the bare operators with the same formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from typing import Any, cast

import torch
from torch.autograd import forward_ad

from .kernels import Tensors

__all__ = [
    "Totals",
    "define",
    "define_passes",
    "differentiable",
    "only",
    "remember",
    "remembered",
    "tangents",
]

Tensor = torch.Tensor

# What runs an operator, by its name.
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


# -- operators ------------------------------------------------------------------------------------


def define_passes(
    name: str,
    operands: tuple[str, ...],
    where: str,
    run: Callable[..., Tensors],
    shape: Callable[..., Tensor],
) -> None:
    """Define the operators of a value, of its gradients, and of the gradients of those.

    They are called ``name``, ``name_backward`` and ``name_double_backward``. The last two take
    flags of the gradients that are wanted, and return empty tensors for the others.
    ``torch.library.custom_op`` would do the same, but imports the compiler stack on the first call,
    which takes a second.

    Parameters
    ----------
    name : str
    operands : tuple of str
        Names of the operands that it is differentiable in; they come first. The gradient ``g`` of
        the value follows, and then, in a double backward, a cotangent or None for each operand.
    where : str
        The other arguments, as torch writes them.
    run : callable
        Takes the kind of pass, operands and cotangents by name, the other arguments, and the names
        of the wanted gradients; returns results by name, the value as "out".
    shape : callable
        Returns an empty value of the right shape, for compilers.
    """
    count, names = len(operands), (*operands, "g")

    def call(kind: str, args: tuple[Any, ...], first: int, wants: tuple[str, ...]) -> Tensors:
        given = operands if kind == "forward" else names
        cotangents: Tensors = {}
        if kind == "double_backward":
            found = zip(operands, args[count + 1 : first], strict=True)
            cotangents = {name: tensor for name, tensor in found if tensor is not None}
        rest = args[first:] if kind == "forward" else args[first:-1]
        if args[0].is_cuda:
            with _on_device(args[0].device):
                return run(kind, dict(zip(given, args, strict=False)), cotangents, rest, wants)
        tensors = {name: tensor.contiguous() for name, tensor in zip(given, args, strict=False)}
        if cotangents:
            cotangents = {name: tensor.contiguous() for name, tensor in cotangents.items()}
        return run(kind, tensors, cotangents, rest, wants)

    def value(*args: Any) -> Tensor:
        return call("forward", args, count, ())["out"]

    def gradients(
        kind: str, first: int, results: tuple[str, ...]
    ) -> Callable[..., tuple[Tensor, ...]]:
        def function(*args: Any) -> tuple[Tensor, ...]:
            wants = tuple(compress(results, args[-1]))
            found = call(kind, args, first, wants) if wants else {}
            return tuple([found[n] if n in found else args[0].new_empty(0) for n in results])

        return function

    def shapes(*args: Any) -> tuple[Tensor, ...]:
        return tuple(
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            if wanted
            else args[0].new_empty(0)
            for tensor, wanted in zip(args, args[-1], strict=False)
        )

    value_schema = ", ".join(f"Tensor {operand}" for operand in operands)
    directions = ", ".join(f"Tensor? {letter}" for letter in "abc"[:count])
    for kind, schema, function, fake in (
        ("", f"({value_schema}, {where}) -> Tensor", value, shape),
        (
            "_backward",
            f"({value_schema}, Tensor g, {where}, bool[] wants) -> ({_tensors(count)})",
            gradients("backward", count + 1, operands),
            shapes,
        ),
        (
            "_double_backward",
            f"({value_schema}, Tensor g, {directions}, {where}, bool[] wants) -> "
            f"({_tensors(count + 1)})",
            gradients("double_backward", 2 * count + 1, names),
            shapes,
        ),
    ):
        define(f"{name}{kind}", schema, function, fake, ("CPU", "CUDA"))
        _FUNCTIONS[f"{name}{kind}"] = function


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


def _tensors(count: int) -> str:
    return ", ".join(["Tensor"] * count)


def only(values: Iterable[Tensor], wants: Iterable[bool]) -> tuple[Tensor | None, ...]:
    """Return the values that are wanted, None for the others."""
    return tuple(v if want else None for v, want in zip(values, wants, strict=True))


def _on_device(device: torch.device) -> AbstractContextManager[Any]:
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
        Of an operator that :func:`define_passes` has defined.
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
