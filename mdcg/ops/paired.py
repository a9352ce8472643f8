"""Convolutions whose edges i -> j and j -> i share one row of weights.

Weights that depend on the length of an edge alone are the same for both directions. The radial
network is evaluated once for both, and its backward pass takes the sum of their gradients.
"""

from __future__ import annotations

from typing import Any, cast

import torch

from ..codegen.common.spec import DERIVATIVES
from ..problem import ConvProblem
from .autograd import only, readable
from .functional import check_operand
from .graph import Pairs, graph_of
from .host import host_kernels
from .operators import conv as conv_operator
from .operators import conv_backward


def can_pair(*tensors: torch.Tensor) -> bool:
    """Whether pairs of edges can be found: on CPUs, if the values of tensors can be read."""
    return all(t.device.type == "cpu" for t in tensors) and readable(*tensors)


def find_pairs(
    problem: ConvProblem,
    edge_attrs: torch.Tensor,
    features: torch.Tensor,
    sender: torch.Tensor,
    receiver: torch.Tensor,
    num_nodes: int,
) -> Pairs | None:
    """Find edges that are the two directions of one edge; None if there are few, or no way to tell.

    Two such edges join the same nodes and have opposite vectors and equal features up to rounding.
    Two images of an edge in a small cell differ in their vectors. All tensors have a row per edge.
    The spherical harmonics of degree 1 in `edge_attrs` are the directions; the weights, a row per
    edge, are functions of the `features`.
    """
    vector = next((b for b in problem.irreps_in2 if b.ir.l == 1 and b.mul), None)
    rows = (len(edge_attrs), len(features), len(sender), len(receiver))
    fits = edge_attrs.dim() == features.dim() == 2 and len(set(rows)) == 1 and rows[0] > 0
    types = edge_attrs.dtype == features.dtype == getattr(torch, problem.dtype)
    if vector is None or problem.shared_weights or not problem.weight_numel:
        return None
    if not (fits and types and edge_attrs.shape[1] == problem.irreps_in2.dim):
        return None
    if vector.mul != 1:
        return None
    graph = graph_of(sender, receiver, num_nodes, num_nodes)
    directions = edge_attrs.detach().contiguous()[:, vector.offset : vector.offset + 3]
    pairs = graph.pairs(directions, features.detach().contiguous())
    return pairs if pairs.pay else None


class _Rows(torch.autograd.Function):
    """Copies rows of pairs to their edges; or the transpose, sums over the edges of each pair."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, pairs: Pairs, to_edges: bool) -> torch.Tensor:
        ctx.pairs, ctx.to_edges = pairs, to_edges
        if to_edges:
            return rows.index_select(0, pairs.row)
        # `index_add` is many times slower
        total = rows.index_select(0, pairs.first)
        other = rows.index_select(0, pairs.second)
        if pairs.single is not None:
            other.masked_fill_(pairs.single, 0)
        return total.add_(other)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return (_sum if ctx.to_edges else _spread)(gradient, ctx.pairs), None, None


def _spread(rows: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    if not can_pair(rows):
        return rows.index_select(0, pairs.row)
    return cast(torch.Tensor, cast(Any, _Rows).apply(rows, pairs, True))


def _sum(rows: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    if not can_pair(rows):
        return rows.new_zeros(len(pairs), rows.shape[1]).index_add(0, pairs.row, rows)
    return cast(torch.Tensor, cast(Any, _Rows).apply(rows, pairs, False))


def mean_of_pairs(features: torch.Tensor, pairs: Pairs) -> torch.Tensor:
    """Return one row per pair: the mean of both edges, which differ by rounding.

    Each edge of a pair gets half of the gradient. Derivatives with respect to positions and cells
    are the same as with one row per edge, because both edges have the same length.
    """
    total = _sum(features, pairs)
    if pairs.single is None:
        return total * 0.5
    return total * torch.where(pairs.single, 1.0, 0.5).to(total.dtype)


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        y: torch.Tensor,
        w: torch.Tensor,
        sender: torch.Tensor,
        receiver: torch.Tensor,
        pairs: Pairs,
        problem: str,
    ) -> torch.Tensor:
        ctx.save_for_backward(x, y, w, sender, receiver)
        ctx.pairs, ctx.problem = pairs, problem
        graph = graph_of(sender, receiver, len(x), len(x))
        operands = {"x": x.contiguous(), "y": y.contiguous(), "w": w.contiguous()}
        return host_kernels(problem, "").run("forward", operands, {}, graph, (), pairs)["out"]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        x, y, w, sender, receiver = ctx.saved_tensors
        wants = list(ctx.needs_input_grad[:3])
        names = tuple(n for n, want in zip(DERIVATIVES, wants, strict=False) if want)
        if not names:
            return (None,) * 7
        if torch.is_grad_enabled() or not can_pair(g):
            # the gradients are differentiated again, or batched
            where = (sender, receiver, len(x), ctx.problem, "")
            w = _spread(w, ctx.pairs)
            dx, dy, dw = only(conv_backward(x, y, w, g, *where, wants), wants)
            return (dx, dy, None if dw is None else _sum(dw, ctx.pairs), *(None,) * 4)
        graph = graph_of(sender, receiver, len(x), len(x))
        operands = {n: t.contiguous() for n, t in zip(DERIVATIVES, (x, y, w, g), strict=True)}
        kernels = host_kernels(ctx.problem, "")
        results = kernels.run("backward", operands, {}, graph, names, ctx.pairs)
        return (*(results.get(n) for n in DERIVATIVES[:3]), *(None,) * 4)


def conv_of_pairs(
    problem: ConvProblem,
    node_feats: torch.Tensor,
    edge_attrs: torch.Tensor,
    weights: torch.Tensor,
    sender: torch.Tensor,
    receiver: torch.Tensor,
    pairs: Pairs,
) -> torch.Tensor:
    """Evaluate :func:`mdcg.ops.conv` with ``weights[pairs.row]``, which are never formed.

    The `pairs` are those of this graph; `weights` has a row for each. The result has a row for each
    node and is differentiable any number of times. An operand that does not fit the problem or the
    pairs is a ValueError or a TypeError.
    """
    edges = len(pairs.row)
    check_operand("node_feats", node_feats, ("n", problem.irreps_in1.dim), problem)
    check_operand("edge_attrs", edge_attrs, (edges, problem.irreps_in2.dim), problem)
    check_operand("weights of pairs", weights, (len(pairs), problem.weight_numel), problem)
    if sender.shape != (edges,) or receiver.shape != (edges,):
        raise ValueError(
            f"sender is {tuple(sender.shape)}, receiver {tuple(receiver.shape)}, but pairs were "
            f"found among {edges} edges: find them in this graph"
        )
    text = problem.to_json()
    out: torch.Tensor
    if can_pair(node_feats, edge_attrs, weights):
        out = cast(Any, _Conv).apply(node_feats, edge_attrs, weights, sender, receiver, pairs, text)
    else:
        each = _spread(weights, pairs)
        out = conv_operator(
            node_feats, edge_attrs, each, sender, receiver, len(node_feats), text, ""
        )
    return out
