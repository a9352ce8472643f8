"""How the engine's fused convolutions run on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass

from .device import WARP
from .text import Plan

#: Number of the highest coefficients of a polynomial that are stored in float32; the same as
#: TABLE_SINGLES in csrc/kernels/table_entry.hpp.
TABLE_SINGLES = {"float32": 0, "float64": 4}


@dataclass(frozen=True)
class TableConvTile:
    """Choices for the kernels of one pass."""

    # "Values" of a task: what each of its lanes keeps in registers from edge to edge.
    batch: int = 32  # edges whose path matrices a block evaluates at a time, at most 32
    # Largest number of warps per block, or per warp group in the forward pass of small systems; one
    # input block with many channels may have more. A problem that needs more warps is computed by
    # several kernels.
    warps: int = 4
    imbalance: int = 16  # largest ratio of the work of two tasks of a block
    # Largest number of output components times channels per lane of a task with several paths. A
    # warp takes paths of one input block up to this number.
    components: int = 64
    # Ascending pairs (values, limit): kernels with at most so many values have this limit of
    # registers per thread, if several blocks then fit a multiprocessor. 0, and beyond the last
    # pair: the compiler's choice.
    registers: tuple[tuple[int, int], ...] = ()
    # Lanes take two neighbouring channels of an input block of more than 32 channels if its tasks
    # then have at most so many values.
    max_values_for_two_channels: int = 0
    max_values_to_share: int = 1024  # a task with more values is alone in its block
    shared_bytes: int = 64 * 1024  # with more shared memory per warp a batch is half as large
    # Warps of a block of the backward pass. If its channels need fewer, several warps share the
    # edges of a batch.
    min_warps: int = 1
    # Forward, kernels whose tasks have at most so many values take two edges in an iteration.
    # Features are loaded one iteration ahead.
    max_values_for_two_edges: int = 0
    degree: int = 3  # odd degree of the polynomials of the table; in float64 at least 5

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= WARP or not 1 <= self.warps <= WARP:
            raise ValueError(
                f"tile has batch {self.batch} and {self.warps} warps, expected 1 to {WARP}"
            )
        if self.components < 1 or self.imbalance < 1:
            raise ValueError(
                f"tile has {self.components} components and imbalance {self.imbalance}, expected "
                "at least 1"
            )
        if self.max_values_for_two_channels < 0 or self.max_values_for_two_edges < 0:
            raise ValueError(
                f"tile has max_values_for_two_channels {self.max_values_for_two_channels} and "
                f"max_values_for_two_edges {self.max_values_for_two_edges}, "
                "expected numbers of values, 0 for never"
            )
        if any(not 0 <= limit <= 255 for _, limit in self.registers):
            raise ValueError(f"tile has registers {self.registers}, expected 0 to 255 per thread")
        if self.degree < 3 or self.degree % 2 == 0:
            raise ValueError(
                f"tile has polynomials of degree {self.degree}, expected an odd number from 3 on"
            )


@dataclass(frozen=True)
class TableConvPlan(Plan):
    """Choices for both passes; the defaults were measured with layers of MACE and NequIP.

    Forward, on an H200, a block of 4 warps is up to 28 % faster than one of 8. Reading the table
    from L2 limits cubic splines: polynomials of degree 7 on 24 to 36 intervals need 60 % fewer
    bytes and take 20 % less time (MACE medium). On an H100, two channels per lane take 16 % less
    time for the scalars of MACE medium and 10 % more for its vectors. With iterations of two edges
    they shorten steps with 5,184 atoms by 5 % (MACE medium) and 3 % (NequIP M; no other model was
    timed).

    Backward, where derivatives are wanted, cubic splines are faster. Lanes take two channels, which
    share sums over lanes and path matrices; tasks with many values then need kernels of their own.
    Registers are left to the compiler: with 168 instead of 255, lanes of the vectors of MACE medium
    spill 208 bytes. With 128 where lanes hold at most 64 values, the kernel for its scalars takes
    4 % longer, and a step with 5,184 atoms and NequIP L 4 % longer (H100). Batches of 32 edges take
    3 to 5 % less time than batches of 16, unless their shared memory leaves room for fewer blocks.
    """

    forward: TableConvTile = TableConvTile(
        degree=7,
        registers=((39, 0), (1024, 128)),
        max_values_for_two_channels=64,
        max_values_to_share=40,
        max_values_for_two_edges=64,
    )
    backward: TableConvTile = TableConvTile(
        imbalance=2,
        max_values_for_two_channels=1024,
        max_values_to_share=56,
        shared_bytes=20 * 1024,
        min_warps=4,
    )


#: Plan in double precision, where errors of tables are at most 1e-13 of the largest weight and
#: 1e-11 of the largest derivative. The bytes of the table limit its kernels. Forward, edges are
#: sorted by length: the fewer intervals there are, the more often the next edge lies in the same
#: one, so degree 9 reads less than degree 7. Backward, most pairs read another row than the pair
#: before, and rows are shorter with degree 7.
#: Registers are left to the compiler. The paths of the vectors of MACE medium are divided between
#: two kernels in the backward pass: with one for all of them a step with 5,184 atoms takes 0 to 2
#: % longer (H100). Other models were not timed.
DOUBLE_PLAN = TableConvPlan(
    forward=TableConvTile(degree=9),
    backward=TableConvTile(batch=16, imbalance=5, degree=7, components=16),
)
