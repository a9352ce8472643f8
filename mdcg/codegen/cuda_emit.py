"""Which generator prints the CUDA kernels of a problem."""

from __future__ import annotations

from ..plan import CudaPlan
from ..problem import ConvProblem
from .cuda import CudaKernel, emit_uvu
from .cuda_uvw import emit_uvw
from .spec import KernelSpec

__all__ = ["emit_cuda"]


def emit_cuda(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernels of one pass.

    Parameters
    ----------
    problem : ConvProblem
        Paths of both modes may be mixed.
    plan : CudaPlan
    spec : KernelSpec

    Raises
    ------
    UnsupportedProblemError
        A block is too large for a CUDA block.
    """
    if any(path.mode == "uvw" for path in problem.paths):
        return emit_uvw(problem, plan, spec)
    return emit_uvu(problem, plan, spec)
