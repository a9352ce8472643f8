"""How a symmetric contraction runs: lanes and tasks on a CPU, threads on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import SymmetricContractionProblem
from .device import WARP, CudaDevice
from .host import ITEMSIZE, HostDevice, check_vectors
from .text import CudaTarget, Plan

__all__ = [
    "CudaContractionPlan",
    "HostContractionPlan",
    "plan_contraction_cuda",
    "plan_contraction_host",
]


@dataclass(frozen=True)
class HostContractionPlan(Plan):
    """Choices of the C++ emitter; printable, and can be given by hand.

    Parameters
    ----------
    level : str
        Instruction set level the kernel is compiled for.
    lanes : int
        Channels per vector, a power of two.
    nodes_per_task : int
        Consecutive nodes that a thread takes at a time.
    """

    level: str
    lanes: int
    nodes_per_task: int = 4

    def __post_init__(self) -> None:
        check_vectors(self.level, self.lanes)
        if self.nodes_per_task < 1:
            raise ValueError(f"plan has {self.nodes_per_task} nodes per task, expected 1 or more")


def plan_contraction_host(
    problem: SymmetricContractionProblem, device: HostDevice
) -> HostContractionPlan:
    """Choose a plan: the widest vectors that the channels fill to more than half."""
    lanes = device.vector_bytes // ITEMSIZE[problem.dtype]
    while lanes > 4 and problem.channels <= lanes // 2:
        lanes //= 2
    return HostContractionPlan(device.level, lanes)


@dataclass(frozen=True)
class CudaContractionPlan(CudaTarget, Plan):
    """Choices of the CUDA emitter; printable, and can be given by hand.

    Parameters
    ----------
    capability : int
        Compute capability the kernels are compiled for, as ``10 * major + minor``.
    threads : int
        Per block, a multiple of 32.
    blocks : int
        Blocks per multiprocessor the registers must leave room for; 0: the compiler's choice.
    """

    capability: int
    threads: int = 128
    blocks: int = 0

    def __post_init__(self) -> None:
        if not WARP <= self.threads <= 1024 or self.threads % WARP or self.blocks < 0:
            raise ValueError(
                f"plan has {self.threads} threads and {self.blocks} blocks, expected a multiple "
                "of 32 up to 1024, and 0 or more"
            )


def plan_contraction_cuda(
    problem: SymmetricContractionProblem, device: CudaDevice
) -> CudaContractionPlan:
    """Choose a plan: all channels of a node in one block where they are few."""
    warps = -(-problem.channels // WARP)
    return CudaContractionPlan(device.capability, threads=WARP * min(4, warps))
