"""The torch operators: value, gradients, gradients of gradients.

Operators carry the problem as canonical JSON: they have no state, and a compiled or exported
program finds its kernels in any process. How they differentiate is in :mod:`mdcg.ops.autograd`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch

from ..codegen.spec import DERIVATIVES
from ..problem import ConvProblem
from .cuda import CudaKernels, cuda_kernels, graph_on_device
from .cuda_graph import packed_length, sorted_edges
from .graph import Graph, graph_of
from .host import host_kernels

__all__ = [
    "FUNCTIONS",
    "conv",
    "conv_backward",
    "conv_double_backward",
    "implements",
    "implements_on_cuda",
    "named",
    "on_device",
]

P = ParamSpec("P")
R = TypeVar("R")
Tensor = torch.Tensor
Tensors3 = tuple[Tensor, Tensor, Tensor]
Tensors4 = tuple[Tensor, Tensor, Tensor, Tensor]

# Implementations by device type and name of the operator.
FUNCTIONS: dict[str, dict[str, Callable[..., Any]]] = {"cpu": {}, "cuda": {}}

_INDEX = "Tensor? sender, Tensor? receiver, SymInt num_receivers, str problem, str plan"


def implements(name: str, schema: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Define an operator and make the function its CPU implementation.

    ``torch.library.custom_op`` would do the same, but imports the compiler stack on the first call,
    which takes a second.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        torch.library.define(f"mdcg::{name}", schema, tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.impl(f"mdcg::{name}", "CPU")(function)
        FUNCTIONS["cpu"][name] = function
        return function

    return register


def _graph(
    x: Tensor, sender: Tensor | None, receiver: Tensor | None, num_receivers: int
) -> Graph | None:
    if sender is None or receiver is None:
        return None
    return graph_of(sender.contiguous(), receiver.contiguous(), x.shape[0], num_receivers)


def named(flags: Iterable[bool], names: Iterable[str] = DERIVATIVES) -> tuple[str, ...]:
    """Return the names whose flag is set."""
    return tuple(name for name, flag in zip(names, flags, strict=False) if flag)


def _skipped(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _possible(names: tuple[str, ...], cotangents: Iterable[str]) -> tuple[str, ...]:
    """Return the gradients of a double backward that are not zero by construction.

    One exists only if another operand has a cotangent: ``phi(a, y, w, g)`` is constant in x.
    """
    present = tuple(cotangents)
    return tuple(n for n in names if any(other != n for other in present))


def _with_zeros(
    found: dict[str, Tensor], names: tuple[str, ...], operands: dict[str, Tensor]
) -> Tensors4:
    """Return all four gradients of a double backward: found, zero by construction, or skipped."""
    zeros = {n: torch.zeros_like(operands[n]) for n in names if n not in found}
    known = found | zeros
    x, y, w, g = (known[n] if n in known else _skipped(operands["x"]) for n in DERIVATIVES)
    return x, y, w, g


@implements("conv", f"(Tensor x, Tensor y, Tensor w, {_INDEX}) -> Tensor")
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
    return host_kernels(problem, plan).forward(
        x.contiguous(), y.contiguous(), w.contiguous(), graph
    )


@implements(
    "conv_backward",
    f"(Tensor x, Tensor y, Tensor w, Tensor g, {_INDEX}, bool[] wants) -> (Tensor, Tensor, Tensor)",
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
    names = named(wants)
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


@implements(
    "conv_double_backward",
    f"(Tensor x, Tensor y, Tensor w, Tensor g, Tensor? a, Tensor? b, Tensor? c, {_INDEX}, "
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
    names = named(wants)
    cotangents = {
        name: t.contiguous()
        for name, t in zip(DERIVATIVES, (a, b, c), strict=False)
        if t is not None
    }
    operands = {name: t.contiguous() for name, t in zip(DERIVATIVES, (x, y, w, g), strict=True)}
    possible = _possible(names, cotangents)
    found: dict[str, Tensor] = {}
    if possible:
        graph = _graph(x, sender, receiver, num_receivers)
        found = host_kernels(problem, plan).double_backward(operands, cotangents, graph, possible)
    return _with_zeros(found, names, operands)


# -- the same on a CUDA device -------------------------------------------------------------------

torch.library.define(
    "mdcg::sorted_edges",
    "(Tensor sender, Tensor receiver, SymInt num_senders, SymInt num_receivers) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
torch.library.impl("mdcg::sorted_edges", "CUDA")(sorted_edges)


def implements_on_cuda(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make the function the CUDA implementation of an operator."""

    def register(function: Callable[P, R]) -> Callable[P, R]:
        torch.library.impl(f"mdcg::{name}", "CUDA")(function)
        FUNCTIONS["cuda"][name] = function
        return function

    return register


def _cuda(x: Tensor, problem: str, plan: str) -> CudaKernels:
    deterministic = torch.are_deterministic_algorithms_enabled()
    return cuda_kernels(problem, plan, x.device.index, deterministic)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make the device current; it mostly is, and torch's own guard takes longer to see that."""
    if torch.cuda.current_device() == device.index:
        return nullcontext()
    return torch.cuda.device(device)


@implements_on_cuda("conv")
def _conv_cuda(
    x: Tensor,
    y: Tensor,
    w: Tensor,
    sender: Tensor | None,
    receiver: Tensor | None,
    num_receivers: int,
    problem: str,
    plan: str,
) -> Tensor:
    with on_device(x.device):
        graph = graph_on_device(x, sender, receiver, num_receivers)
        return _cuda(x, problem, plan).forward({"x": x, "y": y, "w": w}, graph)


@implements_on_cuda("conv_backward")
def _conv_backward_cuda(
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
    names = named(wants)
    found: dict[str, Tensor] = {}
    if names:
        operands = {"x": x, "y": y, "w": w, "g": g}
        with on_device(x.device):
            graph = graph_on_device(x, sender, receiver, num_receivers)
            found = _cuda(x, problem, plan).backward(operands, graph, names)
    return tuple(found.get(n, _skipped(x)) for n in DERIVATIVES[:3])  # type: ignore[return-value]


@implements_on_cuda("conv_double_backward")
def _conv_double_backward_cuda(
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
    names = named(wants)
    cotangents = {n: t for n, t in zip(DERIVATIVES, (a, b, c), strict=False) if t is not None}
    operands = {"x": x, "y": y, "w": w, "g": g}
    possible = _possible(names, cotangents)
    found: dict[str, Tensor] = {}
    if possible:
        with on_device(x.device):
            graph = graph_on_device(x, sender, receiver, num_receivers)
            found = _cuda(x, problem, plan).double_backward(operands, cotangents, graph, possible)
    return _with_zeros(found, names, operands)


# -- shapes, for compilers ------------------------------------------------------------------------


def _sorted_edges_fake(
    sender: Tensor, receiver: Tensor, num_senders: int, num_receivers: int
) -> Tensor:
    length = packed_length(sender.shape[0], num_receivers)
    return sender.new_empty(length, dtype=torch.int32)


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
    return x.new_empty(rows, ConvProblem.from_json(problem).irreps_out.dim)


def _conv_backward_fake(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> Tensors3:
    wants = rest[-1]
    return tuple(  # type: ignore[return-value]
        torch.empty_like(t, memory_format=torch.contiguous_format) if want else _skipped(x)
        for t, want in zip((x, y, w), wants, strict=True)
    )


def _conv_double_backward_fake(x: Tensor, y: Tensor, w: Tensor, g: Tensor, *rest: Any) -> Tensors4:
    wants = rest[-1]
    return tuple(  # type: ignore[return-value]
        torch.empty_like(t, memory_format=torch.contiguous_format) if want else _skipped(x)
        for t, want in zip((x, y, w, g), wants, strict=True)
    )


for _name, _fake in (
    ("conv", _conv_fake),
    ("conv_backward", _conv_backward_fake),
    ("conv_double_backward", _conv_double_backward_fake),
    ("sorted_edges", _sorted_edges_fake),
):
    torch.library.register_fake(f"mdcg::{_name}", _fake)
