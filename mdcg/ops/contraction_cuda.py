"""Runs the generated CUDA kernels of one symmetric contraction on torch tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from ..codegen import CudaKernel
from ..codegen.contraction import ContractionSpec
from ..codegen.contraction_cuda import emit_contraction_cuda
from ..errors import UnsupportedProblemError
from ..plan.contraction import CudaContractionPlan, plan_contraction_cuda
from ..problem import SymmetricContractionProblem
from .contraction_kernels import ContractionKernels
from .cuda import aligned
from .cuda_program import CudaProgram, cuda_device, current_stream

__all__ = ["CudaContraction", "cuda_contraction"]

_MAX_BLOCKS = 2**31 - 1


@dataclass(frozen=True)
class _Loaded:
    """A kernel on one device."""

    kernel: CudaKernel
    program: CudaProgram
    function: int


class CudaContraction(ContractionKernels[_Loaded]):
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
        super().__init__(problem)
        self.index = index
        self.plan = plan if plan is not None else plan_contraction_cuda(problem, cuda_device(index))

    def _make(self, spec: ContractionSpec) -> _Loaded:
        kernel = emit_contraction_cuda(self.problem, self.plan, spec)
        program = CudaProgram(self.index, self.plan.target, [kernel.source])
        return _Loaded(kernel, program, program.function(0, kernel.entries[0].name, 0))

    def _ready(self, tensor: torch.Tensor) -> torch.Tensor:
        return aligned(tensor)

    def _sum(
        self, loaded: _Loaded, attributes: torch.Tensor, rows: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        # nothing here waits for the host
        return (attributes.t() @ rows.reshape(len(rows), -1)).reshape(shape)

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
