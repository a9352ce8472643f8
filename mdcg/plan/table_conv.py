"""How the engine's fused convolutions run on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

from .device import WARP
from .text import Plan

__all__ = ["POLYNOMIAL_PLAN", "TableConvPlan", "TableConvTile"]


@dataclass(frozen=True)
class TableConvTile:
    """Choices of one pass.

    Parameters
    ----------
    batch : int
        Edges whose path matrices a block evaluates at a time, at most 32.
    warps : int
        Largest number of warps per block; a single input block with many channels may have more. A
        problem that needs more warps is computed by several kernels.
    imbalance : int
        Largest ratio of the work of two roles that share a block.
    components : int
        Registers per lane that output sums, or gradients of the output, may fill; a warp takes
        paths of one input block until they do.
    registers : int
        Largest number of registers per thread, used where several blocks then fit a multiprocessor;
        0: the compiler's choice.
    channels : int
        Channels per lane, 32 apart; 1 for input blocks that have no more than 32.
    alone : int
        A role that holds more values per lane than this from edge to edge shares no block.
    limited : tuple of int and int
        Range of such values in which `registers` applies.
    shared_bytes : int
        Shared memory per warp from which on a batch is half as large.
    fill : int
        Warps that a block of the backward pass has at least: where its channels need fewer, several
        share the edges of a batch.
    """

    batch: int = 32
    warps: int = 4
    imbalance: int = 16
    components: int = 64
    registers: int = 0
    channels: int = 1
    alone: int = 1024
    limited: tuple[int, int] = (0, 1024)
    shared_bytes: int = 64 * 1024
    fill: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= WARP or not 1 <= self.warps <= WARP:
            raise ValueError(
                f"tile has batch {self.batch} and {self.warps} warps, expected 1 to {WARP}"
            )
        if self.components < 1 or self.imbalance < 1 or not 0 <= self.registers <= 255:
            raise ValueError(
                f"tile has {self.components} components, {self.registers} registers and imbalance "
                f"{self.imbalance}, expected at least 1, 0 to 255, and at least 1"
            )


@dataclass(frozen=True)
class TableConvPlan(Plan):
    """Choices of both passes; printable, and can be given by hand.

    Measured on an H200 with layers of MACE and NequIP. Forward, a block of 4 warps is up to 28 %
    faster than one of 8. Backward, two channels per lane take 14 to 35 % less time than one,
    because they share sums over lanes and path matrices; roles that hold much then need kernels of
    their own. A limit of 168 registers for lanes that hold 64, 96 and 118 values takes 9 % more,
    8 % less and 25 % more time than none. Batches of 32 edges take 3 to 5 % less time than batches
    of 16, unless their shared memory leaves room for fewer blocks.

    ``degree``, an odd number, is the degree of tables of polynomials, whose relative error is below
    1e-13: degree 9 needs 64 to 128 intervals where degree 7 needs 128 to 256, and its table is
    smaller.
    """

    forward: TableConvTile = TableConvTile()
    backward: TableConvTile = TableConvTile(
        imbalance=2,
        registers=168,
        channels=2,
        alone=56,
        limited=(80, 110),
        shared_bytes=20 * 1024,
        fill=4,
    )
    degree: int = 9


#: Plan of tables of polynomials, in double precision: 8 warps of 168 registers would leave room for
#: one block per multiprocessor, 4 leave room for three. In the forward pass, 128 registers leave
#: room for four blocks of 4 warps (3.22 -> 3.04 ms, MACE medium on an H200).
POLYNOMIAL_PLAN = TableConvPlan(
    forward=TableConvTile(registers=128),
    backward=TableConvTile(batch=16, warps=4, imbalance=5, registers=168),
)
