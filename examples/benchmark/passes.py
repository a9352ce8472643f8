"""The timed passes (value, first and second derivatives) and their float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .layer import Graph, Layer, Prepared

PASSES = ("fwd", "fwd+bwd", "fwd+bwd+dbl")
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Inputs:
    """Operands of one convolution, and the cotangent that the backward pass starts from."""

    node_feats: Tensor
    edge_attrs: Tensor
    weights: Tensor
    cotangent: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the three operands and the cotangent."""
        parts = (self.node_feats, self.edge_attrs, self.weights, self.cotangent)
        return sum(tensor.nbytes for tensor in parts)


def make_inputs(layer: Layer, graph: Graph, seed: int = 0) -> Inputs:
    """Draw seeded normal numbers for all operands."""
    problem, n_edges, device = layer.problem, len(graph.sender), graph.sender.device
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=layer.dtype, device=device)

    rows = () if problem.shared_weights else (n_edges,)
    return Inputs(
        node_feats=normal(graph.n_nodes, problem.irreps_in1.dim),
        edge_attrs=normal(n_edges, problem.irreps_in2.dim),
        weights=normal(*rows, problem.weight_numel),
        cotangent=normal(graph.n_nodes, problem.irreps_out.dim),
    )


def make_pass(name: str, prepared: Prepared, inputs: Inputs) -> Callable[[], Tensors]:
    """Return a function that runs one pass.

    ``fwd`` returns the output; ``fwd+bwd`` the gradients of <output, cotangent> with respect to
    node features, edge attributes and weights; ``fwd+bwd+dbl`` the gradients, with respect to the
    same three, of the squared norm of the first two of those gradients.
    """
    x, a = prepared.nodes_in(inputs.node_feats), inputs.edge_attrs
    w = prepared.weights_in(inputs.weights)
    cotangent = prepared.nodes_out(inputs.cotangent)
    run = prepared.run
    if name == "fwd":

        def forward() -> Tensors:
            with torch.no_grad():
                return (run(x, a, w),)

        return forward
    x, a, w = (tensor.detach().requires_grad_() for tensor in (x, a, w))

    def backward() -> Tensors:
        return torch.autograd.grad(run(x, a, w), (x, a, w), cotangent)

    def double_backward() -> Tensors:
        gx, ga, _ = torch.autograd.grad(run(x, a, w), (x, a, w), cotangent, create_graph=True)
        return torch.autograd.grad(gx.square().sum() + ga.square().sum(), (x, a, w))

    return backward if name == "fwd+bwd" else double_backward


def to_common(name: str, prepared: Prepared, results: Tensors) -> Tensors:
    """Convert the results of a pass back to e3nn's layout."""
    if name == "fwd":
        return (prepared.nodes_out_back(results[0]),)
    gx, ga, gw = results
    return (prepared.nodes_in_back(gx), ga, prepared.weights_back(gw))


def reference(
    module: Any,
    graph: Graph,
    inputs: Inputs,
    chunk_bytes: int | None = None,
) -> dict[str, Tensors]:
    """Compute all passes with an e3nn module in float64, a few edges at a time.

    `chunk_bytes` are held in messages at a time; default: 64 MiB on a CPU, 1 GiB on a GPU.
    """
    x, cotangent = inputs.node_feats.double(), inputs.cotangent.double()
    a, w = inputs.edge_attrs, inputs.weights
    if chunk_bytes is None:
        chunk_bytes = 2**30 if x.is_cuda else 2**26
    shared = w.dim() == 1
    step = max(1, chunk_bytes // (8 * cotangent.shape[1]))
    spans = [slice(first, first + step) for first in range(0, len(graph.sender), step)]
    out = torch.zeros_like(cotangent)
    grads = tuple(torch.zeros_like(t, dtype=torch.float64) for t in (x, a, w))
    grads2 = tuple(torch.zeros_like(t) for t in grads)

    def parts(span: slice) -> tuple[Tensors, Tensor]:
        rows = (x[graph.sender[span]], a[span], w if shared else w[span])
        leaves = tuple(t.detach().double().clone().requires_grad_() for t in rows)
        return leaves, module(*leaves)

    def add(total: Tensors, span: slice, part: Tensors) -> None:
        total[0].index_add_(0, graph.sender[span], part[0].detach())
        total[1][span] += part[1].detach()
        total[2][slice(None) if shared else span] += part[2].detach()

    # unfused: compiling for a few calls would take longer than they do
    jit: Any = torch.jit
    with jit.optimized_execution(False):
        for span in spans:
            leaves, messages = parts(span)
            out.index_add_(0, graph.receiver[span], messages.detach())
            first = torch.autograd.grad(messages, leaves, cotangent[graph.receiver[span]])
            add(grads, span, first)
        # The gradient of |gx|² + |ga|² is that of <gx, 2 gx'> + <ga, 2 ga'> with gx', ga' held
        # fixed, which is a sum over edges.
        for span in spans:
            leaves, messages = parts(span)
            gx, ga, _ = torch.autograd.grad(
                messages, leaves, cotangent[graph.receiver[span]], create_graph=True
            )
            fixed_x, fixed_a = 2 * grads[0][graph.sender[span]], 2 * grads[1][span]
            value = (gx * fixed_x).sum() + (ga * fixed_a).sum()
            add(grads2, span, torch.autograd.grad(value, leaves))
    return {"fwd": (out,), "fwd+bwd": grads, "fwd+bwd+dbl": grads2}


def relative_errors(results: Tensors, expected: Tensors, chunk_rows: int = 2**16) -> list[float]:
    """Return max |result - expected| / max |expected| of each tensor."""
    errors = []
    for result, truth in zip(results, expected, strict=True):
        worst = scale = 0.0
        # a difference of whole weight gradients would fill as much memory as they do
        for first in range(0, len(truth), chunk_rows):
            got, want = (t[first : first + chunk_rows] for t in (result, truth))
            if want.numel():
                error = float((got.double() - want).abs().max())
                worst = error if error > worst or math.isnan(error) else worst
                scale = max(scale, float(want.abs().max()))
        errors.append(worst / max(scale, torch.finfo(torch.float64).tiny))
    return errors
