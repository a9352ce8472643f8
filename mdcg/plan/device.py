"""How a tensor product or convolution runs on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..problem import ConvProblem
from .host import ITEMSIZE
from .text import CudaTarget, Plan

# Threads of a warp. The lanes of a warp take consecutive channels.
WARP = 32

# Kernels of problems with at most MAX_TIGHT_BLOCKS input blocks (all of MACE) must not spill
# registers up to compute capability 9. Other kernels may spill SPILL_BYTES per thread.
MAX_TIGHT_BLOCKS = 3
SPILL_BYTES = 64

# If a plan limits registers, spilling this many bytes outside the loop over edges costs less time
# than the additional resident blocks save.
CAPPED_BYTES = 40

_TILES = ("forward", "backward", "double_backward")


@dataclass(frozen=True)
class CudaDevice(CudaTarget):
    """The properties of a CUDA device that plans depend on."""

    capability: int = 80  # 10 * major + minor: 90 for an H100 or H200


@dataclass(frozen=True)
class CudaTile:
    """Choices for the kernels of one pass."""

    channels: int  # largest number of consecutive channels per lane, a power of two
    # 32-bit registers per lane for sums of outputs, or for gradients of the output. A warp takes
    # paths of one input block until they are full.
    components: int
    batch: int = 16  # edges whose path matrices a block evaluates at a time, at most 32
    # Largest number of warps per block, or more for one input block with many channels. A problem
    # that needs more warps is computed by several kernels.
    warps: int = 2
    registers: int = 0  # limit per thread; 0: the compiler's choice
    # Edges whose operands are in shared memory or are being copied there: 1, 2 or 4. With 1, or if
    # rows do not consist of whole 16-byte words, the next edge's operands are in registers.
    depth: int = 1
    spill_bytes: int = 0  # limit of local memory per thread, which tests check

    def __post_init__(self) -> None:
        if self.channels not in (1, 2, 4):
            raise ValueError(f"tile has {self.channels} channels per lane, expected 1, 2 or 4")
        if not 1 <= self.batch <= WARP or not 1 <= self.warps <= WARP:
            raise ValueError(
                f"tile has batch {self.batch} and {self.warps} warps, expected 1 to {WARP}"
            )
        if self.depth not in (1, 2, 4):
            raise ValueError(f"tile has depth {self.depth}, expected 1, 2 or 4")
        if self.components < 1 or not 0 <= self.registers <= 255:
            raise ValueError(
                f"tile has {self.components} components and {self.registers} registers, expected "
                "at least 1, and 0 to 255"
            )
        if self.spill_bytes < 0:
            raise ValueError(f"tile has {self.spill_bytes} spill_bytes, expected 0 or more")


@dataclass(frozen=True)
class CudaUvwTile:
    """Choices for kernels whose paths have weight matrices (mode ``uvw``), one warp per row."""

    warps: int = 4  # largest number per block; those of a convolution share a receiver
    words: int = 24  # 32-bit registers per lane for weights that are being loaded
    # Bytes of shared memory per warp for intermediate results of a row. Larger problems compute
    # their paths in several passes over the row.
    scratch: int = 12 * 1024
    # Limits of registers per thread in kernels that only read weights, in kernels that write their
    # gradient, and in double backward kernels; 0: the compiler's choice. That choice is too small
    # for the first to keep loads in flight (H200: 10 to 24 % slower, in float64 up to 76 %).
    registers: int = 0
    gradient_registers: int = 0
    double_registers: int = 0
    # Limit of local memory per thread, outside the loops over weights, which tests check.
    spill_bytes: int = 2 * SPILL_BYTES

    def __post_init__(self) -> None:
        if self.warps not in (1, 2, 4, 8, 16):
            raise ValueError(f"uvw tile has {self.warps} warps, expected 1, 2, 4, 8 or 16")
        registers = (self.registers, self.gradient_registers, self.double_registers)
        if self.words < 1 or self.scratch < 1 or not all(0 <= n <= 255 for n in registers):
            raise ValueError(
                f"uvw tile has {self.words} words, {self.scratch} bytes of scratch and registers "
                f"{registers}, expected at least 1, at least 1, and 0 to 255"
            )


@dataclass(frozen=True)
class CudaPlan(CudaTarget, Plan):
    """Choices for the CUDA kernels of a tensor product or convolution."""

    capability: int  # compute capability, 10 * major + minor
    forward: CudaTile
    backward: CudaTile
    double_backward: CudaTile
    # Equal inputs give bitwise equal results, because no sum depends on the order of blocks: the
    # gradient of node features is written per edge, and then summed by sender.
    deterministic: bool = False
    uvw: CudaUvwTile = CudaUvwTile()  # for all passes of problems with a path of mode uvw

    @property
    def vector_atomics(self) -> bool:
        """Whether the device adds float vectors to memory in one instruction."""
        return self.capability >= 90

    @property
    def overlaps(self) -> bool:
        """Whether a kernel starts while the last blocks of the previous kernel run.

        Deterministic kernels do not, because their order is the order of sums.
        """
        return self.capability >= 90 and not self.deterministic

    def padded(self, mul: int) -> int:
        """Return a multiplicity rounded up to whole vectors."""
        return -(-mul // 4) * 4

    @classmethod
    def _parsed(cls, found: dict[str, Any]) -> dict[str, Any]:
        tiles: dict[str, Any] = {name: CudaTile(**found[name]) for name in _TILES}
        return {**found, **tiles, "uvw": CudaUvwTile(**found["uvw"])}


def plan_cuda(problem: ConvProblem, device: CudaDevice) -> CudaPlan:
    """Choose a plan: 8-byte loads, and few different tasks in a block.

    Warps of different tasks run different straight-line code. Measured on an H200: with eight tasks
    in a block a backward pass of many paths takes six times as long as with one or two
    (64x(0o..3e), degree 3: 54 ms against 8.5 ms), probably because instruction caches overflow.
    """
    words = ITEMSIZE[problem.dtype] // 4
    blocks = len({path.i_in1 for path in problem.paths}) or 1
    # the code of a task is as long as the path matrices of its input block have entries
    warps = 2 if problem.nnz <= 100 * blocks else 1
    # compilers spill a few registers to keep more blocks resident where there are many tasks, and
    # on devices for which no tile was measured
    tight = blocks <= MAX_TIGHT_BLOCKS and device.capability < 100
    spill_bytes = 0 if tight else SPILL_BYTES
    tile = CudaTile(channels=2 // words, components=80, warps=warps, spill_bytes=spill_bytes)
    # measured: prefetching several edges always helps the forward pass, and gradients if the code
    # is short
    short = problem.nnz <= 45 * blocks
    backward, double = _gradient_registers(problem, words, blocks)
    # a few bytes spilled outside the loops over weights cost less than losing a resident block
    registers = (64, 80, 96) if words == 1 else (80, 128, 168)
    if problem.nnz > 100:  # longer code needs more registers; the compiler chooses how many
        registers = (registers[0], 0, 0)
    return CudaPlan(
        device.capability,
        forward=replace(tile, depth=4),
        backward=replace(
            tile,
            depth=4 if short or words == 2 else 1,
            registers=backward,
            spill_bytes=max(spill_bytes, CAPPED_BYTES if backward else 0),
        ),
        double_backward=replace(
            tile,
            depth=words,
            registers=double,
            spill_bytes=max(spill_bytes, CAPPED_BYTES if double else 0),
        ),
        uvw=CudaUvwTile(4, 24, 12 * 1024, *registers),
    )


def _gradient_registers(problem: ConvProblem, words: int, blocks: int) -> tuple[int, int]:
    """Return registers per thread of backward and double backward kernels.

    Measured on an H200: kernels of scalars take 5 and 11 % less time with 96 registers. In float64,
    backward kernels with short code take 8 % less time with 168 registers, and those as long as
    MACE-large's 3 % less. Longer code spills; other code uses no more registers without a limit.
    """
    scalars = all(problem.irreps_in1[path.i_in1].ir.l == 0 for path in problem.paths)
    if words == 1 and scalars:
        return 96, 96
    if words == 2:
        return (168 if problem.nnz <= 45 * blocks else 0), 0
    return (168 if 60 * blocks < problem.nnz <= 100 * blocks else 0), 0
