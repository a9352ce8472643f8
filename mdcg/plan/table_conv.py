"""How the engine's fused convolutions run on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

from .device import WARP
from .text import Plan

__all__ = ["TableConvPlan", "TableConvTile"]


@dataclass(frozen=True)
class TableConvTile:
    """Choices of one pass.

    Parameters
    ----------
    batch : int
        Edges whose path matrices a block evaluates at a time, at most 32.
    warps : int
        Warps per block at most, but for a single block of many channels; a problem that needs more
        is computed by several kernels.
    components : int
        Items per lane that output sums, or gradients of the output, may fill; a warp takes paths
        of one input block until they do.
    blocks : int
        Blocks per multiprocessor that the compiler must leave registers for; 0: its own choice.
    """

    batch: int = 32
    warps: int = 8
    components: int = 64
    blocks: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= WARP or not 1 <= self.warps <= WARP:
            raise ValueError(
                f"tile has batch {self.batch} and {self.warps} warps, expected 1 to {WARP}"
            )
        if self.components < 1 or self.blocks < 0:
            raise ValueError(
                f"tile has {self.components} components and {self.blocks} blocks, expected at "
                "least 1 and 0"
            )


@dataclass(frozen=True)
class TableConvPlan(Plan):
    """Choices of both passes; printable, and can be given by hand."""

    forward: TableConvTile = TableConvTile()
    backward: TableConvTile = TableConvTile(batch=16)
