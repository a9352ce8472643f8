"""From (problem, plan) to kernel source: one layer of expressions, one emitter per target."""

from .cuda import CudaEntry, CudaKernel
from .cuda_emit import emit_cuda
from .engine_contraction import emit_engine_contraction
from .engine_conv import emit_engine_conv
from .host import HostKernel, emit_host
from .lowering import LoweredProblem, lower
from .spec import KernelSpec

__all__ = [
    "CudaEntry",
    "CudaKernel",
    "HostKernel",
    "KernelSpec",
    "LoweredProblem",
    "emit_cuda",
    "emit_engine_contraction",
    "emit_engine_conv",
    "emit_host",
    "lower",
]
