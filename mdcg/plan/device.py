"""How a problem runs on a CUDA device: channels per thread, sums in registers, warps per block."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from ..problem import ConvProblem
from .host import ITEMSIZE

__all__ = ["CudaDevice", "CudaPlan", "CudaTile", "CudaUvwTile", "plan_cuda"]

# Threads of a warp; lanes of one warp take consecutive channels.
WARP = 32

# Rows of a block wait for their own warps alone, at one of 15 hardware barriers each.
MAX_ROWS = 15


@dataclass(frozen=True)
class CudaDevice:
    """What a plan needs to know of a CUDA device.

    Parameters
    ----------
    capability : int
        Compute capability as ``10 * major + minor``: 90 for an H100 or H200.
    """

    capability: int = 80

    @property
    def target(self) -> str:
        """Name of the architecture, such as ``"sm_90"``."""
        return f"sm_{self.capability}"


@dataclass(frozen=True)
class CudaTile:
    """Choices of one pass.

    Parameters
    ----------
    channels : int
        Consecutive channels per lane at most, a power of two.
    components : int
        32-bit registers per lane that output sums, or gradients of the output, may fill; a warp
        takes paths of one input block until they do.
    batch : int
        Edges whose path matrices a block evaluates at a time, at most 32.
    warps : int
        Warps per block at most, but for a single block of many channels; a problem that needs more
        is computed by several kernels.
    registers : int
        Registers per thread the compiler may use; 0: its own choice.
    rows : int
        Receivers a block takes side by side: neighbours share senders, whose features then come
        from the cache of the multiprocessor (measured: gains little).
    """

    channels: int
    components: int
    batch: int = 16
    warps: int = 2
    registers: int = 0
    rows: int = 1

    def __post_init__(self) -> None:
        if self.channels not in (1, 2, 4):
            raise ValueError(f"tile has {self.channels} channels per lane, expected 1, 2 or 4")
        if not 1 <= self.batch <= WARP or not 1 <= self.warps <= WARP:
            raise ValueError(
                f"tile has batch {self.batch} and {self.warps} warps, expected 1 to {WARP}"
            )
        if not 1 <= self.rows <= MAX_ROWS:
            raise ValueError(f"tile has {self.rows} rows per block, expected 1 to {MAX_ROWS}")
        if self.components < 1 or not 0 <= self.registers <= 255:
            raise ValueError(
                f"tile has {self.components} components and {self.registers} registers, expected "
                "at least 1, and 0 to 255"
            )


@dataclass(frozen=True)
class CudaUvwTile:
    """Choices of kernels whose paths have weight matrices (mode ``uvw``), a warp per row.

    Parameters
    ----------
    warps : int
        Warps per block at most; those of a convolution share a receiver.
    words : int
        32-bit registers per lane that weights in flight may fill.
    scratch : int
        Bytes of shared memory per warp for what the paths make of a row; larger problems take
        their paths in several turns.
    registers, gradient_registers, double_registers : int
        Registers per thread the compiler may use in kernels that read weights alone, that write
        their gradient, and in double backward ones; 0: its own choice, which for the first is too
        small to keep loads under way (measured on an H200: 10 to 24 % slower, in float64 up to
        76 %).
    """

    warps: int = 4
    words: int = 24
    scratch: int = 12 * 1024
    registers: int = 0
    gradient_registers: int = 0
    double_registers: int = 0

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
class CudaPlan:
    """Choices of the CUDA emitter; printable, and can be given by hand.

    Parameters
    ----------
    capability : int
        Compute capability the kernels are compiled for, as ``10 * major + minor``.
    forward, backward : CudaTile
        Of the kernels that sum outputs, and of those that compute gradients per edge.
    uvw : CudaUvwTile
        Instead of both where a path has mode ``uvw``.
    """

    capability: int
    forward: CudaTile
    backward: CudaTile
    uvw: CudaUvwTile = CudaUvwTile()

    @property
    def target(self) -> str:
        """Name of the architecture, such as ``"sm_90"``."""
        return f"sm_{self.capability}"

    @property
    def vector_atomics(self) -> bool:
        """Whether the device adds float vectors to memory in one instruction."""
        return self.capability >= 90

    def padded(self, mul: int) -> int:
        """Return a multiplicity rounded up to whole vectors."""
        return -(-mul // 4) * 4

    def with_changes(self, **changes: object) -> CudaPlan:
        """Return a copy with some fields replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_json(self) -> str:
        """Return canonical JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> CudaPlan:
        """Rebuild from :meth:`to_json`.

        Raises
        ------
        ValueError
            The text is a plan for another kind of device.
        """
        fields = json.loads(text)
        if "capability" not in fields:
            raise ValueError(
                "the plan is not one for CUDA, but the tensors are on a CUDA device: "
                "give a CudaPlan or none"
            )
        return cls(
            fields["capability"],
            CudaTile(**fields["forward"]),
            CudaTile(**fields["backward"]),
            CudaUvwTile(**fields["uvw"]),
        )

    def __str__(self) -> str:
        return (
            f"CudaPlan {self.target}: forward {self.forward}, backward {self.backward}, "
            f"uvw {self.uvw}"
        )


def plan_cuda(problem: ConvProblem, device: CudaDevice) -> CudaPlan:
    """Choose a plan: 8-byte loads, few different roles side by side.

    Warps of different roles run different straight-line code. Measured on an H200: with eight roles
    in a block a backward pass of many paths takes six times as long as with one or two
    (64x(0o..3e), degree 3: 54 ms against 8.5 ms), probably because instruction caches overflow.

    Parameters
    ----------
    problem : ConvProblem
    device : CudaDevice
    """
    words = ITEMSIZE[problem.dtype] // 4
    blocks = len({path.i_in1 for path in problem.paths}) or 1
    # entries of path matrices per input block: the length of a role's code
    warps = 2 if problem.nnz <= 100 * blocks else 1
    tile = CudaTile(channels=2 // words, components=80, batch=16, warps=warps)
    # a few bytes spilled outside the loops over weights cost less than a block less
    registers = (64, 80, 96) if words == 1 else (80, 128, 168)
    uvw = CudaUvwTile(4, 24, 12 * 1024, *registers)
    return CudaPlan(device.capability, forward=tile, backward=tile, uvw=uvw)
