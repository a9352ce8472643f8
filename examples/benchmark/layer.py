"""The interface of implementations of the convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mdcg.errors import MissingDependencyError, installation
from mdcg.patch._frameworks import default_dtype
from mdcg.problem import ConvProblem, Irreps

from .cases import Case

Convolution = Callable[[Tensor, Tensor, Tensor], Tensor]
Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """A case as an e3nn module, from which all implementations are made, and as a problem."""

    case: Case
    dtype: torch.dtype
    tensor_product: Any
    problem: ConvProblem


@dataclass(frozen=True)
class Graph:
    """Edges on the device, sorted by receiver.

    `batched`: row n of a batch is an edge from node n to node n; nothing is gathered or summed.
    """

    n_nodes: int
    sender: Tensor
    receiver: Tensor
    batched: bool = False


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Prepared:
    """An implementation ready to run on one graph.

    `run` is ``(node_feats, edge_attrs, weights) -> node_out`` in the implementation's own layout.
    The others convert from e3nn's layout to that one and, with `_back`, from it; this is done
    outside of the timed span.
    """

    run: Convolution
    nodes_in: Change = _same
    nodes_in_back: Change = _same
    nodes_out: Change = _same
    nodes_out_back: Change = _same
    weights_in: Change = _same
    weights_back: Change = _same


def component_major(run: Convolution, problem: ConvProblem, device: torch.device) -> Prepared:
    """Wrap a function that takes and gives node rows component-major (``ir_mul``)."""
    into, back = _transposition(problem.irreps_in1, device)
    out_into, out_back = _transposition(problem.irreps_out, device)
    return Prepared(
        run,
        nodes_in=lambda t: t[:, into].contiguous(),
        nodes_in_back=lambda t: t[:, back],
        nodes_out=lambda t: t[:, out_into].contiguous(),
        nodes_out_back=lambda t: t[:, out_back],
    )


def _transposition(irreps: Irreps, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return column orders mul_ir -> ir_mul and back."""
    pieces = [torch.zeros(0, dtype=torch.int64)]
    for block in irreps:
        columns = block.offset + torch.arange(block.dim)
        pieces.append(columns.reshape(block.mul, block.ir.dim).T.reshape(-1))
    into = torch.cat(pieces).to(device)
    return into, torch.argsort(into)


def build_layer(case: Case, dtype: torch.dtype, device: str = "cpu") -> Layer:
    """Build the e3nn module of a case, with its own constants rounded to `dtype`."""
    try:
        # e3nn 0.4.4 loads constants that hold slices, which weights_only refuses
        with torch.serialization.safe_globals([slice]):
            from e3nn import o3
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"layers are built with e3nn, but {error.name!r} is not installed: "
            f"{installation('mace')}, or {installation('nequip')}"
        ) from error
    irreps_out, instructions = case.build()
    with default_dtype(dtype):
        module = o3.TensorProduct(
            case.irreps_in1,
            case.irreps_in2,
            irreps_out,
            list(instructions),
            shared_weights=case.shared_weights,
            internal_weights=False,
        )
    problem = ConvProblem.from_e3nn(module, dtype=str(dtype).removeprefix("torch."))
    return Layer(case, dtype, module.to(device), problem)
