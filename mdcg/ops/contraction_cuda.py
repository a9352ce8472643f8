"""Runs the generated CUDA kernels of one symmetric contraction on torch tensors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache

import torch

from ..codegen import CudaKernel
from ..codegen.contraction import ContractionSpec
from ..codegen.contraction_cuda import emit_contraction_cuda
from ..errors import UnsupportedProblemError
from ..plan.contraction import CudaContractionPlan, plan_contraction_cuda
from ..problem import SymmetricContractionProblem
from .cuda import aligned
from .cuda_program import CudaProgram, cuda_device, current_stream

__all__ = ["CudaContraction", "cuda_contraction"]

Tensors = dict[str, torch.Tensor]

_MAX_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class _Loaded:
    """A kernel on one device."""

    kernel: CudaKernel
    program: CudaProgram
    function: int


class CudaContraction:
    """All kernels of one problem on one device, loaded when first used.

    Parameters
    ----------
    problem : SymmetricContractionProblem
    index : int
        Of the device, as torch counts them.
    plan : CudaContractionPlan, optional
        Default: :func:`mdcg.plan.contraction.plan_contraction_cuda` for the device.
    """

    def __init__(
        self,
        problem: SymmetricContractionProblem,
        index: int,
        plan: CudaContractionPlan | None = None,
    ) -> None:
        self.problem = problem
        self.index = index
        self.plan = plan if plan is not None else plan_contraction_cuda(problem, cuda_device(index))
        self._loaded: dict[ContractionSpec, _Loaded] = {}
        self._lock = threading.Lock()

    def load(self, spec: ContractionSpec) -> _Loaded:
        """Return a kernel, compiling it if no cache holds it."""
        found = self._loaded.get(spec)
        if found is not None:
            return found
        kernel = emit_contraction_cuda(self.problem, self.plan, spec)
        program = CudaProgram(self.index, self.plan.target, [kernel.source])
        loaded = _Loaded(kernel, program, program.function(0, kernel.entries[0].name, 0))
        with self._lock:
            return self._loaded.setdefault(spec, loaded)

    def run(
        self,
        kind: str,
        operands: Tensors,
        attributes: torch.Tensor | None,
        cotangents: Tensors,
        wants: tuple[str, ...],
    ) -> Tensors:
        """Return the results of one pass; parameters as for the CPU, nothing waits for the host.

        Gradients of coefficients are made per node and summed by a matrix product with the
        attributes.
        """
        given = tuple(name for name in ("x", "w") if name in cotangents)
        spec = ContractionSpec(kind, attributes is not None, wants, given)
        loaded = self.load(spec)
        tensors = {name: aligned(tensor) for name, tensor in operands.items()}
        letters = {"x": "a", "w": "b"}
        tensors |= {letters[name]: aligned(tensor) for name, tensor in cotangents.items()}
        x = tensors["x"]
        nodes = x.shape[0]
        width = self.problem.num_coefficients, self.problem.channels
        results: Tensors = {}
        if kind == "forward":
            results["out"] = x.new_empty(nodes, self.problem.channels * self.problem.dim_out)
        for name in wants:
            like = (nodes, *width) if name == "w" else tensors[name].shape
            results[f"d{name}"] = x.new_empty(like)
        values = {name: tensor.data_ptr() for name, tensor in (tensors | results).items()}
        values["n_rows"] = nodes
        if attributes is not None:
            values |= {"y": attributes.data_ptr(), "n_species": attributes.shape[1]}
        self._launch(loaded, values, nodes)
        if "dw" in results and attributes is not None:
            rows = results["dw"].reshape(nodes, -1)
            results["dw"] = (attributes.t() @ rows).reshape(operands["w"].shape)
        return {name.removeprefix("d"): tensor for name, tensor in results.items()}

    def _launch(self, loaded: _Loaded, values: dict[str, int], nodes: int) -> None:
        kernel = loaded.kernel
        entry = kernel.entries[0]
        blocks = -(-nodes * kernel.run // entry.rows)
        if blocks > _MAX_BLOCKS:
            raise UnsupportedProblemError(
                f"{nodes} nodes of {self.problem.channels} channels are more than one launch can "
                "take: split them"
            )
        if blocks == 0:
            return
        stream = current_stream(self.index)
        arguments = [values[name] for name in kernel.arguments]
        loaded.program.launch(loaded.function, blocks, entry.threads, 0, stream, arguments)


@lru_cache(maxsize=512)
def cuda_contraction(problem_json: str, plan_json: str, index: int) -> CudaContraction:
    """Return the kernels of a problem on a device; ``plan_json`` empty: the automatic plan."""
    plan = CudaContractionPlan.from_json(plan_json) if plan_json else None
    return CudaContraction(SymmetricContractionProblem.from_json(problem_json), index, plan)
