"""Defines operators and differentiates them to any order.

Operators have no state: they carry their problem as canonical JSON, so that a compiled or exported
program finds its kernels in any process. Eager calls go through ``torch.autograd.Function``, which
``torch.func`` can transform; compiled programs see the bare operators with the same formulas.

The backward operator computes the gradients of ``phi(x, y, ..., g) = <g, value(x, y, ...)>`` with
respect to x, y and so on. The double backward operator computes the gradients of ``psi``, the
derivative of ``phi`` along the cotangents a, b, ... of the operands. ``phi`` is linear in g. If it
is linear in an operand, the derivative of ``psi`` along that operand is ``psi`` with the direction
in place of the operand and without the operand's cotangent. The gradient of ``psi`` with respect
to a cotangent is the gradient of ``phi`` with respect to the operand.

In this module, `where` are the arguments of an operator that are no operands: indices, sizes, the
problem and the plan. A `place` is the index of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import compress
from typing import Any, cast

import torch
from torch.autograd import forward_ad

from .kernels import Names, Tensors


def define(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    keys: Iterable[str],
) -> None:
    """Define an operator: its schema, its function for devices `keys`, and shapes for compilers."""
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
            # An empty batch needs one sample for the shape of the result: the sum over it, zeros.
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
    """Define an operator with its derivatives, and return a function for eager code to call.

    `setup` saves the arguments. `vjp` and `jvp` multiply the Jacobian from the left and from the
    right. The other parameters are those of :func:`define`.
    """
    define(name, schema, function, fake, ("CPU", "CUDA"))
    operator = getattr(torch.ops.mdcg, name).default

    def call(*args: Any) -> Any:
        # a compiler traces the operator, because it cannot trace a Function with jvp and vmap
        if torch.compiler.is_compiling():
            return operator(*args)
        if _transforms_active():
            return transformable.apply(*args)
        if torch.is_grad_enabled() or _level() >= 0 or not _unwatched(args):
            return eager.apply(*args)
        return function(*args)

    def forward(*args: Any) -> Any:
        # the dispatcher takes 20 us, and only modes and tracers need it
        if _unwatched(args):
            return function(*args)
        # This Function differentiates already. The guard keeps the operator's own rules out.
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
    # a separate setup_context would take 60 us more per call
    eager = _function(name, forward=eager_forward, backward=vjp, jvp=jvp)
    return call


def _function(name: str, **members: Callable[..., Any]) -> Any:
    namespace = {key: staticmethod(member) for key, member in members.items()}
    return cast(Any, type(name.title(), (torch.autograd.Function,), namespace))


def readable(*tensors: torch.Tensor) -> bool:
    """Whether the values of tensors can be read.

    They cannot be read under torch.compile, export, tracing, ``torch.func`` transforms and
    forward-mode differentiation. Under autocast, operators may use operands in other types.
    """
    if torch.compiler.is_compiling() or _level() >= 0 or not _unwatched(tensors):
        return False
    autocast = torch.is_autocast_enabled(tensors[0].device.type)
    return not autocast and all(type(t) is torch.Tensor for t in tensors)


def _always() -> bool:
    return True


def _level() -> int:
    """Return the level of forward-mode differentiation, negative outside of it."""
    return forward_ad._current_level


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _unwatched(args: tuple[Any, ...]) -> bool:
    """Whether operands are plain tensors, and no mode or tracer must see the operator.

    In a rule of a ``torch.func`` transform, operands are wrapped, and only the dispatcher unwraps
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


# The test in torch.autograd.Function.apply. If this torch lacks it, all calls are transformable.
_transforms_active: Callable[[], bool] = getattr(
    cast(Any, torch)._C, "_are_functorch_transforms_active", _always
)


Tensor = torch.Tensor
Where = tuple[Any, ...]


def only(values: Iterable[Tensor], wants: Iterable[bool]) -> tuple[Tensor | None, ...]:
    """Return the values that are wanted, None for the others."""
    return tuple(v if want else None for v, want in zip(values, wants, strict=True))


class Totals:
    """Sums of contributions by name. Contributions to other names than `names` are dropped."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)
        self.found: dict[str, Tensor] = {}

    def wants(self, *names: str) -> list[bool]:
        """Return whether each name is wanted."""
        return [name in self.names for name in names]

    def add(self, names: Iterable[str], values: Iterable[Tensor]) -> None:
        """Add values to the sums of these names."""
        for name, value in zip(names, values, strict=True):
            if name in self.names:
                self.found[name] = self.found[name] + value if name in self.found else value


class Passes:
    """The operators ``name``, ``name_backward`` and ``name_double_backward``.

    The last two take a flag for each gradient, and return empty tensors for gradients that are not
    wanted. ``torch.library.custom_op`` would do the same, but imports the compiler stack on the
    first call, which takes a second.

    `operands` are one letter for each operand in which the value is differentiable. Operands are
    the first arguments. The gradient ``g`` of the value follows, and then, in a double backward, a
    cotangent or None for each operand. `where` is the schema of the remaining arguments, tensors
    first. The value is linear in the first of these that can have a tangent. `refusal` says why a
    gradient with respect to them is refused.
    """

    def __init__(self, name: str, operands: str, where: str, refusal: str = "") -> None:
        self.count = count = len(operands)
        self.names, self.cotangents = (*operands, "g"), tuple("abc"[:count])
        self.tensors, self.others = where.count("Tensor"), where.count(",") + 1
        self.refusal = refusal
        tensors = [f"Tensor {name}" for name in self.names]
        tensors += [f"Tensor? {letter}" for letter in self.cotangents]
        operators = []
        for kind, first, results, vjp, jvp in (
            ("forward", count, 1, self._value_vjp, self._value_jvp),
            ("backward", count + 1, count, self._backward_vjp, self._backward_jvp),
            ("double_backward", 2 * count + 1, count + 1, self._double_vjp, self._double_jvp),
        ):
            forward = kind == "forward"
            arguments = ", ".join([*tensors[:first], where, *([] if forward else ["bool[] wants"])])
            returned = "Tensor" if forward else f"({', '.join(['Tensor'] * results)})"
            operators.append(
                differentiable(
                    name if forward else f"{name}_{kind}",
                    f"({arguments}) -> {returned}",
                    self._value if forward else partial(self._gradients, kind, first, results),
                    self.shape if forward else _gradient_shapes,
                    partial(self._remember, first),
                    vjp,
                    jvp,
                )
            )
        self.value, self.backward, self.double_backward = operators

    def run(
        self, kind: str, operands: Tensors, cotangents: Tensors, where: Where, wants: Names
    ) -> Tensors:
        """Run the kernels of one pass. Return gradients by operand, or the value as "out"."""
        raise NotImplementedError

    @staticmethod
    def shape(*args: Any) -> Tensor:
        """Return an empty value of the right shape, for compilers."""
        raise NotImplementedError

    # -- running --------------------------------------------------------------------------------

    def _call(self, kind: str, args: tuple[Any, ...], first: int, wants: Names) -> Tensors:
        names = self.names[: self.count] if kind == "forward" else self.names
        cotangents: Tensors = {}
        if kind == "double_backward":
            found = zip(names, args[self.count + 1 : first], strict=False)
            cotangents = {name: tensor for name, tensor in found if tensor is not None}
        where = args[first:] if kind == "forward" else args[first:-1]
        if args[0].is_cuda:
            with _on_device(args[0].device):
                operands = dict(zip(names, args, strict=False))
                return self.run(kind, operands, cotangents, where, wants)
        operands = {name: tensor.contiguous() for name, tensor in zip(names, args, strict=False)}
        if cotangents:
            cotangents = {name: tensor.contiguous() for name, tensor in cotangents.items()}
        return self.run(kind, operands, cotangents, where, wants)

    def _value(self, *args: Any) -> Tensor:
        return self._call("forward", args, self.count, ())["out"]

    def _gradients(self, kind: str, first: int, results: int, *args: Any) -> tuple[Tensor, ...]:
        wants = tuple(compress(self.names, args[-1]))
        found = self._call(kind, args, first, wants) if wants else {}
        return tuple(
            [found[n] if n in found else args[0].new_empty(0) for n in self.names[:results]]
        )

    # -- parts of the formulas --------------------------------------------------------------------

    def _remember(self, first: int, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        saved, end = first + self.tensors, first + self.others
        ctx.save_for_backward(*inputs[:saved])
        if hasattr(ctx, "save_for_forward"):
            ctx.save_for_forward(*inputs[:saved])
        ctx.first, ctx.where = first, inputs[saved:end]
        if len(inputs) > end:
            ctx.wanted = tuple(inputs[end])
            ctx.shapes = tuple(t.shape for t in output)
        ctx.set_materialize_grads(False)

    def _needed(self, ctx: Any) -> list[bool]:
        """Return which operands and cotangents need gradients."""
        if any(ctx.needs_input_grad[ctx.first : ctx.first + self.tensors]):
            raise NotImplementedError(self.refusal)
        return list(ctx.needs_input_grad[: ctx.first])

    def _add(
        self, total: Totals, names: Sequence[str], operands: Sequence[Any], where: Where
    ) -> None:
        """Add gradients of phi or, if `operands` include cotangents, of psi."""
        cotangents = operands[self.count + 1 :]
        wants = total.wants(*names)
        if any(wants) and (not cotangents or any(t is not None for t in cotangents)):
            operator = self.double_backward if cotangents else self.backward
            total.add(names, operator(*operands, *where, wants))

    def _where(self, place: int, where: Where) -> Where:
        """Return `where` for the value with a direction in place of an operand."""
        return where

    def _moved_value(
        self, place: int, direction: Tensor, operands: tuple[Tensor, ...], where: Where
    ) -> Tensor:
        """Return the derivative of the value along an operand."""
        return self.value(
            *operands[:place], direction, *operands[place + 1 :], *self._where(place, where)
        )

    def _add_moved_psi(
        self, total: Totals, place: int, direction: Tensor, operands: tuple[Any, ...], where: Where
    ) -> None:
        """Add gradients of the derivative of psi along an operand, or along g."""
        moved = list(operands)
        names, cotangents = list(self.names), list(self.cotangents)
        moved[place], names[place] = direction, ""
        if place < self.count:
            moved[self.count + 1 + place], cotangents[place] = None, ""
        where = self._where(place, where)
        self._add(total, names, moved, where)
        self._add(total, cotangents, moved[: self.count + 1], where)

    def _tangents(self, ctx: Any, total: Totals, like: Tensor) -> tuple[Tensor, ...]:
        """Return one tangent per output; zeros for outputs without contributions."""
        return tuple(
            total.found[name] if name in total.found else like.new_zeros(shape)
            for name, shape in zip(self.names, ctx.shapes, strict=False)
        )

    # -- formulas: from the left (vjp) and from the right (jvp) -----------------------------------

    def _value_vjp(self, ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
        operands, where = _remembered(ctx)
        wants = self._needed(ctx)
        found: tuple[Any, ...] = (None,) * len(wants)
        if g is not None and any(wants):
            found = only(self.backward(*operands, g, *where, wants), wants)
        return (*found, *(None,) * len(where))

    def _value_jvp(self, ctx: Any, *moves: Tensor | None) -> Tensor | None:
        operands, where = _remembered(ctx)
        parts = [
            self._moved_value(place, moved, operands, where)
            for place, moved in enumerate(moves[: self.count])
            if moved is not None
        ]
        if moves[self.count] is not None:
            parts.append(self.value(*operands, moves[self.count], *where[1:]))
        return sum(parts[1:], parts[0]) if parts else None

    def _backward_vjp(self, ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        operands, where = _remembered(ctx)
        given = [t if used else None for t, used in zip(cotangents, ctx.wanted, strict=True)]
        wants = self._needed(ctx)
        found: tuple[Any, ...] = (None,) * len(wants)
        if any(wants) and any(t is not None for t in given):
            found = only(self.double_backward(*operands, *given, *where, wants), wants)
        return (*found, *(None,) * (len(where) + 1))

    def _backward_jvp(self, ctx: Any, *moves: Tensor | None) -> tuple[Tensor, ...]:
        operands, where = _remembered(ctx)
        count, names = self.count, self.names[: self.count]
        total = Totals(compress(names, ctx.wanted))
        self._add(total, (*names, ""), (*operands, *moves[:count]), where)
        if moves[count] is not None:
            self._add(total, names, (*operands[:count], moves[count]), where)
        if moves[count + 1] is not None:
            self._add(total, names, operands, (moves[count + 1], *where[1:]))
        return self._tangents(ctx, total, operands[0])

    def _double_vjp(self, ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        operands, where = _remembered(ctx)
        names = (*self.names, *self.cotangents)
        total = Totals(compress(names, self._needed(ctx)))
        for place, (direction, used) in enumerate(zip(cotangents, ctx.wanted, strict=True)):
            if direction is not None and used:
                self._add_moved_psi(total, place, direction, operands, where)
        return (*(total.found.get(name) for name in names), *(None,) * (len(where) + 1))

    def _double_jvp(self, ctx: Any, *moves: Tensor | None) -> tuple[Tensor, ...]:
        operands, where = _remembered(ctx)
        first, last = self.count + 1, 2 * self.count + 1
        total = Totals(compress(self.names, ctx.wanted))
        for place, direction in enumerate(moves[:first]):
            if direction is not None:
                self._add_moved_psi(total, place, direction, operands, where)
        self._add(total, self.names, (*operands[:first], *moves[first:last]), where)
        if moves[last] is not None:
            self._add(total, self.names, operands, (moves[last], *where[1:]))
        return self._tangents(ctx, total, operands[0])


def _remembered(ctx: Any) -> tuple[tuple[Any, ...], Where]:
    """Return the saved operands and cotangents, and `where`."""
    saved = tuple(ctx.saved_tensors)
    return saved[: ctx.first], (*saved[ctx.first :], *ctx.where)


def _gradient_shapes(*args: Any) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty_like(tensor, memory_format=torch.contiguous_format)
        if wanted
        else args[0].new_empty(0)
        for tensor, wanted in zip(args, args[-1], strict=False)
    )


def _on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make the device current. It usually is, which torch's own guard takes longer to find out."""
    if torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)
