"""From (problem, plan) to kernel source: one layer of expressions, one emitter per target."""

from .host import HostKernel, emit_host
from .lowering import LoweredProblem, lower
from .spec import KernelSpec

__all__ = ["HostKernel", "KernelSpec", "LoweredProblem", "emit_host", "lower"]
