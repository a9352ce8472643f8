"""What an implementation of the convolution is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import MissingDependencyError
from ..problem import ConvProblem, Irreps
from .cases import Case

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "Convolution",
    "Graph",
    "Layer",
    "Peer",
    "Prepared",
    "build_layer",
    "component_major",
]

Convolution = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]


@dataclass(frozen=True)
class Layer:
    """A case as an e3nn module, from which all implementations are made, and as a problem."""

    case: Case
    dtype: torch.dtype
    tensor_product: Any
    problem: ConvProblem


@dataclass(frozen=True)
class Graph:
    """Edges on the device.

    Parameters
    ----------
    n_nodes : int
        Nodes, or rows of a batch.
    sender, receiver : torch.Tensor, shape (n_edges,), int64
    order : str
        Which of the two is sorted, if any.
    batched : bool
        True: row n of a batch is an edge from node n to node n; nothing is gathered or summed.
    """

    n_nodes: int
    sender: Tensor
    receiver: Tensor
    order: str = "receiver"
    batched: bool = False


def _same(tensor: Tensor) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Prepared:
    """An implementation ready to run on one graph.

    Parameters
    ----------
    run : callable
        ``(node_feats, edge_attrs, weights) -> node_out``, in the implementation's own layout.
    nodes_in, nodes_out : callable
        Convert node features, or outputs, from e3nn's layout to the implementation's own.
        Done outside of the timed span.
    nodes_in_back, nodes_out_back : callable
        The way back.
    weights_in, weights_back : callable
        The same for weights.
    """

    run: Convolution
    nodes_in: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_in_back: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_out: Callable[[Tensor], Tensor] = field(default=_same)
    nodes_out_back: Callable[[Tensor], Tensor] = field(default=_same)
    weights_in: Callable[[Tensor], Tensor] = field(default=_same)
    weights_back: Callable[[Tensor], Tensor] = field(default=_same)


class Peer(Protocol):
    """One implementation."""

    name: str
    description: str

    def missing(self, device: str) -> str | None:
        """Return why this implementation cannot run on a device, or None."""

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Build it for a layer and a graph.

        Raises
        ------
        UnsupportedProblemError
            The implementation cannot compute this layer.
        """

    def counters(self) -> dict[str, float]:
        """Return what this process compiled and loaded so far; empty if that is not counted."""


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
    import torch

    pieces = [torch.zeros(0, dtype=torch.int64)]
    for block in irreps:
        columns = block.offset + torch.arange(block.dim)
        pieces.append(columns.reshape(block.mul, block.ir.dim).T.reshape(-1))
    into = torch.cat(pieces).to(device)
    return into, torch.argsort(into)


def build_layer(case: Case, dtype: torch.dtype, device: str = "cpu") -> Layer:
    """Build the e3nn module of a case, with its own constants rounded to `dtype`.

    Raises
    ------
    MissingDependencyError
        e3nn is not installed.
    """
    import torch

    from ..patch._frameworks import default_dtype

    try:
        # e3nn 0.4.4 loads constants that hold slices, which weights_only refuses
        with torch.serialization.safe_globals([slice]):
            from e3nn import o3
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"bench conv builds its layers with e3nn, but {error.name!r} is not installed: "
            "pip install 'mdcg[mace]' or 'mdcg[nequip]'"
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
    name = str(dtype).removeprefix("torch.")
    problem = ConvProblem.from_e3nn(module, dtype=name)
    return Layer(case, dtype, module.to(device), problem)
