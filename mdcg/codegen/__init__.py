"""From (problem, plan) to kernel source: one layer of expressions, one emitter per target."""

from .common.emit import CudaEntry, CudaKernel, HostKernel
from .common.lowering import LoweredProblem, lower
from .common.spec import KernelSpec
from .contraction.engine import emit_engine_contraction
from .conv.edge_weights import emit_cuda
from .conv.engine import emit_engine_conv
from .conv.host import emit_host

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
