"""How a symmetric contraction runs on a CPU or a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import SymmetricContractionProblem
from .device import WARP, CudaDevice
from .host import ITEMSIZE, HostDevice, check_vectors
from .text import CudaTarget, Plan


@dataclass(frozen=True)
class HostContractionPlan(Plan):
    """Choices for the C++ kernels of a symmetric contraction."""

    level: str  # instruction set level that the kernel is compiled for, a key of LEVELS
    lanes: int  # channels per vector, a power of two
    nodes_per_task: int = 4  # consecutive nodes that a thread takes at a time

    def __post_init__(self) -> None:
        check_vectors(self.level, self.lanes)
        if self.nodes_per_task < 1:
            raise ValueError(f"plan has {self.nodes_per_task} nodes per task, expected 1 or more")


def plan_contraction_host(
    problem: SymmetricContractionProblem, device: HostDevice
) -> HostContractionPlan:
    """Choose the widest vectors that the channels fill to more than half."""
    lanes = device.vector_bytes // ITEMSIZE[problem.dtype]
    while lanes > 4 and problem.channels <= lanes // 2:
        lanes //= 2
    return HostContractionPlan(device.level, lanes)


@dataclass(frozen=True)
class CudaContractionPlan(CudaTarget, Plan):
    """Choices for the CUDA kernels of a symmetric contraction."""

    capability: int  # compute capability, 10 * major + minor
    threads: int = 128  # per block, a multiple of 32
    blocks: int = 0  # per multiprocessor that registers leave room for; 0: the compiler's choice

    def __post_init__(self) -> None:
        if not WARP <= self.threads <= 1024 or self.threads % WARP or self.blocks < 0:
            raise ValueError(
                f"plan has {self.threads} threads and {self.blocks} blocks, expected a multiple "
                "of 32 up to 1024, and 0 or more"
            )


def plan_contraction_cuda(
    problem: SymmetricContractionProblem, device: CudaDevice
) -> CudaContractionPlan:
    """Put all channels of a node in one block where they are few."""
    warps = -(-problem.channels // WARP)
    return CudaContractionPlan(device.capability, threads=WARP * min(4, warps))
