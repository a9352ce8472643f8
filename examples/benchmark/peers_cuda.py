"""cuEquivariance and OpenEquivariance as implementations to compare with, on CUDA devices."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mdcg.errors import UnsupportedProblemError, VerificationError
from mdcg.problem import ConvProblem, Irreps

from .layer import Convolution, Graph, Layer, Prepared, component_major

_PROBE_ROWS = 4


def _missing(device: str, *modules: str) -> str | None:
    """Return why packages that compute on CUDA devices alone cannot run, or None."""
    absent = [name for name in modules if find_spec(name) is None]
    if absent:
        return f"{', '.join(absent)} is not installed"
    return None if device == "cuda" else "it has kernels for CUDA devices only"


class CueqPeer:
    """cuEquivariance: ``uniform_1d`` with indices, or ``fused_tp`` where paths are ``uvw``."""

    name = "cueq"

    def missing(self, device: str) -> str | None:
        """Return why it cannot run, or None."""
        return _missing(device, "cuequivariance_torch", "cuequivariance_ops_torch")

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Build the polynomial; refuse layers for which it has no kernels."""
        problem = layer.problem
        mode = _only_mode(problem, self.name)
        multiplicities = {problem.irreps_in1[path.i_in1].mul for path in problem.paths}
        if mode == "uvu" and len(multiplicities) > 1:
            raise UnsupportedProblemError(
                "uniform_1d needs one multiplicity, but the layer has "
                f"{', '.join(map(str, sorted(multiplicities)))}"
            )
        import cuequivariance_torch

        method = "uniform_1d" if mode == "uvu" else "fused_tp"
        module: Any = cuequivariance_torch.SegmentedPolynomial(
            polynomial(problem), method=method, math_dtype=layer.dtype
        ).to(graph.sender.device)
        if "Naive" in type(getattr(module, "m", module)).__name__:
            raise UnsupportedProblemError(
                f"it has no {method} here and would compute with torch: see whether "
                "'import cuequivariance_ops_torch' works"
            )
        return component_major(self._function(module, graph), problem, graph.sender.device)

    def _function(self, module: Any, graph: Graph) -> Convolution:
        sender, receiver, n_nodes = graph.sender, graph.receiver, graph.n_nodes

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            rows = weights if weights.dim() == 2 else weights[None]
            operands = [rows, node_feats, edge_attrs]
            if graph.batched:
                out: Tensor = module(operands)[0]
                return out
            # only the number of rows of the third argument is read
            shape = node_feats if len(node_feats) == n_nodes else node_feats.new_empty(n_nodes, 1)
            summed: Tensor = module(operands, {1: sender}, {0: shape}, {0: receiver})[0]
            return summed

        return run


def _only_mode(problem: ConvProblem, name: str) -> str:
    modes = {path.mode for path in problem.paths}
    if len(modes) != 1 or not all(path.has_weight for path in problem.paths):
        raise UnsupportedProblemError(
            f"{name} is compared on layers with weights and one connection mode, got "
            f"{', '.join(sorted(modes))}"
        )
    return modes.pop()


def polynomial(problem: ConvProblem) -> Any:
    """Describe a problem to cuEquivariance, with segments in the problem's own order.

    All paths are ``uvu`` with attributes of multiplicity 1, or all ``uvw``. Weights come first,
    then node features, attributes and output.
    """
    import cuequivariance

    uvw = problem.paths[0].mode == "uvw"
    product = cuequivariance.SegmentedTensorProduct.from_subscripts(
        "uvw,iu,jv,kw+ijk" if uvw else "uv,iu,jv,ku+ijk"
    )
    for operand, irreps in ((1, problem.irreps_in1), (2, problem.irreps_in2)):
        for block in irreps:
            product.add_segment(operand, (block.ir.dim, block.mul))
    for block in problem.irreps_out:
        product.add_segment(3, (block.ir.dim, block.mul))
    for number, path in enumerate(problem.paths):
        mul2 = problem.irreps_in2[path.i_in2].mul
        if not uvw and mul2 != 1:
            raise UnsupportedProblemError(
                f"path {number} sums over {mul2} channels of its attributes, expected 1 for uvu"
            )
        product.add_segment(0, problem.weight_shape(path))
        product.add_path(
            number,
            path.i_in1,
            path.i_in2,
            path.i_out,
            c=problem.w3j(problem.degrees(path)) * path.path_weight,
        )
    found = cuequivariance.SegmentedPolynomial.eval_last_operand(product)
    return found if uvw else found.flatten_coefficient_modes().squeeze_modes()


class OeqPeer:
    """OpenEquivariance: the fused convolution, or ``TensorProduct`` for a batch."""

    name = "oeq"

    def missing(self, device: str) -> str | None:
        """Return why it cannot run, or None."""
        return _missing(device, "openequivariance")

    def prepare(self, layer: Layer, graph: Graph) -> Prepared:
        """Build the convolution; a small case tells in which order its output blocks come."""
        import openequivariance

        kernel = self._kernel(openequivariance, layer, graph)
        run = self._function(kernel, graph)
        probe = Graph(_PROBE_ROWS, *_ring(graph.sender.device), batched=graph.batched)
        columns = block_columns(
            layer.problem.irreps_out,
            match_blocks(*_probe(layer, kernel, self._function(kernel, probe), probe)),
        ).to(graph.sender.device)
        back = columns.argsort()
        per_row = not layer.problem.shared_weights

        def into(weights: Tensor) -> Tensor:
            found: Tensor = kernel.reorder_weights_from_e3nn(weights, has_batch_dim=per_row)
            return found

        def out_of(weights: Tensor) -> Tensor:
            found: Tensor = kernel.reorder_weights_to_e3nn(weights, has_batch_dim=per_row)
            return found

        prepared = Prepared(run)
        if not bool((columns[1:] > columns[:-1]).all()):
            prepared = replace(
                prepared,
                nodes_out=lambda t: t[:, back].contiguous(),
                nodes_out_back=lambda t: t[:, columns],
            )
        if layer.problem.paths[0].mode == "uvw":  # for uvu its weight order is e3nn's
            prepared = replace(prepared, weights_in=into, weights_back=out_of)
        return prepared

    def _kernel(self, package: Any, layer: Layer, graph: Graph) -> Any:
        dtype = np.float64 if layer.problem.dtype == "float64" else np.float32
        irreps_out, instructions = layer.case.build()
        problem = package.TPProblem(
            package.Irreps(layer.case.irreps_in1),
            package.Irreps(layer.case.irreps_in2),
            package.Irreps(irreps_out),
            list(instructions),
            shared_weights=layer.case.shared_weights,
            internal_weights=False,
            irrep_dtype=dtype,
            weight_dtype=dtype,
        )
        if graph.batched:
            return package.TensorProduct(problem)
        return package.TensorProductConv(problem)

    def _function(self, kernel: Any, graph: Graph) -> Convolution:
        # with int32 indices it ends the process
        sender, receiver = graph.sender.long(), graph.receiver.long()

        def run(node_feats: Tensor, edge_attrs: Tensor, weights: Tensor) -> Tensor:
            if graph.batched:
                rows: Tensor = kernel(node_feats, edge_attrs, weights)
                return rows
            out: Tensor = kernel(node_feats, edge_attrs, weights, receiver, sender)
            return out

        return run


def _ring(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the edges of a small symmetric graph, sorted by receiver."""
    receiver = torch.arange(_PROBE_ROWS, device=device).repeat_interleave(2)
    step = torch.tensor([1, _PROBE_ROWS - 1], device=device).repeat(_PROBE_ROWS)
    sender = (receiver + step) % _PROBE_ROWS
    order = (receiver * _PROBE_ROWS + sender).argsort()
    return sender[order], receiver[order]


def _probe(layer: Layer, kernel: Any, run: Convolution, graph: Graph) -> tuple[Any, Any, Irreps]:
    """Return e3nn's output and another implementation's for a small case, and their irreps."""
    problem, device = layer.problem, graph.sender.device
    generator = torch.Generator().manual_seed(0)
    if graph.batched:
        rows = torch.arange(graph.n_nodes, device=device)
        graph = Graph(graph.n_nodes, rows, rows, batched=True)
    edges = len(graph.sender)
    weight_rows = () if problem.shared_weights else (edges,)
    x, y, w = (
        torch.randn(*shape, generator=generator, dtype=torch.float64).to(device, layer.dtype)
        for shape in (
            (graph.n_nodes, problem.irreps_in1.dim),
            (edges, problem.irreps_in2.dim),
            (*weight_rows, problem.weight_numel),
        )
    )
    with torch.no_grad():
        messages = layer.tensor_product(x[graph.sender], y, w)
        want = messages.new_zeros(graph.n_nodes, messages.shape[1])
        want.index_add_(0, graph.receiver, messages)
        if problem.paths[0].mode == "uvw":
            w = kernel.reorder_weights_from_e3nn(w, has_batch_dim=not problem.shared_weights)
        got = run(x, y, w)
    return want.double().cpu().numpy(), got.double().cpu().numpy(), problem.irreps_out


def match_blocks(want: Any, got: Any, irreps: Irreps) -> list[int]:
    """Return for each block of e3nn's output `want` the block of `got` that equals it.

    `got` may hold blocks of equal irreps in another order; `VerificationError` if it is another
    result.
    """
    scale = float(np.abs(want).max())
    free = set(range(len(irreps)))
    found = []
    for number, block in enumerate(irreps):
        columns = slice(block.offset, block.offset + block.dim)
        errors = {
            other: float(
                np.abs(
                    want[:, columns]
                    - got[:, irreps[other].offset : irreps[other].offset + block.dim]
                ).max()
            )
            for other in free
            if irreps[other].ir == block.ir and irreps[other].mul == block.mul
        }
        best = min(errors, key=lambda other: (errors[other], other != number), default=None)
        if best is None or not errors[best] <= 1e-4 * scale:
            raise VerificationError(
                f"block {number} of its output is not in e3nn's: the implementations do not "
                "compute the same layer"
            )
        found.append(best)
        free.remove(best)
    return found


def block_columns(irreps: Irreps, order: list[int]) -> Tensor:
    """Return the columns that bring blocks in the given order back to that of `irreps`."""
    pieces = [torch.zeros(0, dtype=torch.int64)]
    for other in order:
        block = irreps[other]
        pieces.append(block.offset + torch.arange(block.dim))
    return torch.cat(pieces)
