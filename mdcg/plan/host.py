"""How a tensor product or convolution runs on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from ..problem import ConvProblem
from .text import Plan

ITEMSIZE = {"float32": 4, "float64": 8}

# Compiler target and vector bytes of each level, best first.
LEVELS: dict[str, tuple[str, int]] = {
    "x86-64-v4": ("-march=x86-64-v4", 64),
    "x86-64-v3": ("-march=x86-64-v3", 32),
    "x86-64-v2": ("-march=x86-64-v2", 16),
    "aarch64": ("-march=armv8-a", 16),
    "generic": ("", 16),
}


@dataclass(frozen=True)
class HostDevice:
    """The properties of a CPU that plans depend on."""

    level: str = "generic"  # instruction set level, a key of LEVELS
    l2_bytes: int = 512 * 1024  # level-2 cache per core

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"device level is {self.level!r}, expected one of {', '.join(LEVELS)}")

    @property
    def vector_bytes(self) -> int:
        return LEVELS[self.level][1]


def check_vectors(level: str, lanes: int) -> None:
    """Raise ValueError unless the level is known and the lanes are a power of two."""
    if level not in LEVELS:
        raise ValueError(f"plan level is {level!r}, expected one of {', '.join(LEVELS)}")
    if lanes < 1 or lanes & (lanes - 1):
        raise ValueError(f"plan has {lanes} lanes, expected a power of two")


@dataclass(frozen=True)
class HostPlan(Plan):
    """Choices for the C++ kernels of a tensor product or convolution."""

    level: str  # instruction set level that the kernel is compiled for, a key of LEVELS
    lanes: int  # channels per vector, a power of two
    senders_per_block: int  # whose features and gradients stay in cache in a backward pass
    accumulator_bytes: int = 24576  # limit of the outputs that a group of paths sums at a time
    prefetch_edges: int = 2  # edges ahead whose uvu weights are fetched; 0: none
    streaming_stores: bool = True  # write weight gradients past the cache if alignment allows it

    def __post_init__(self) -> None:
        check_vectors(self.level, self.lanes)
        if self.senders_per_block < 1 or self.prefetch_edges < 0:
            raise ValueError(
                "plan blocks must hold at least one sender, and edges ahead cannot be negative"
            )

    def padded(self, mul: int) -> int:
        """Return a multiplicity rounded up to whole vectors."""
        return -(-mul // self.lanes) * self.lanes


def plan_host(problem: ConvProblem, device: HostDevice) -> HostPlan:
    """Choose the widest vectors that multiplicities fill, and blocks that fit half the L2 cache."""
    itemsize = ITEMSIZE[problem.dtype]
    widest = device.vector_bytes // itemsize
    muls = [b.mul for irreps in (problem.irreps_in1, problem.irreps_out) for b in irreps if b.mul]
    lanes = widest
    # narrower vectors if more than half of a vector would be empty for every block
    while lanes > 4 and max(muls, default=1) <= lanes // 2:
        lanes //= 2
    row_bytes = max(
        1, sum((2 * b.ir.l + 1) * -(-b.mul // lanes) * lanes for b in problem.irreps_in1)
    )
    row_bytes *= itemsize
    senders = max(4, min(64, device.l2_bytes // 4 // (2 * row_bytes)))
    return HostPlan(level=device.level, lanes=lanes, senders_per_block=senders)


@dataclass(frozen=True)
class EnginePlan:
    """Choices for the engine's generated CPU kernels."""

    edges: int = 96  # edges of a block, a multiple of 16 (whole vectors)
    panels: int = 4  # 64-byte panels of channels in a chunk, if they divide the multiplicity

    def __post_init__(self) -> None:
        if self.edges < 16 or self.edges % 16:
            raise ValueError(f"plan has blocks of {self.edges} edges, expected a multiple of 16")
        if self.panels not in (1, 2, 4):
            raise ValueError(f"plan takes {self.panels} panels at a time, expected 1, 2 or 4")
