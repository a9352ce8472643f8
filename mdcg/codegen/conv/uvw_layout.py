"""Layout of a kernel for paths with weight matrices: its turns and its shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UnsupportedProblemError
from ...plan import CudaPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import MulIrrep
from ..common.emit import packed_row
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec

__all__ = ["Body", "Piece", "Stack", "Turn", "UvwLayout"]

# Bytes of shared memory of a block at most, so that several fit on any multiprocessor.
_SHARED_BYTES = 48 * 1024

# Rows of results up to this many bytes are summed in shared memory, longer rows in place.
_ROW_BYTES = 8 * 1024

# Most path matrix entries of one body, and most attribute gradients that it keeps in registers.
_BODY_ENTRIES = 160
_BODY_ATTRIBUTES = 32


@dataclass(frozen=True)
class Piece:
    """Channels ``first`` to ``last`` of a path; ``base`` is where its values begin in a turn."""

    path: LoweredPath
    first: int
    last: int
    base: int = 0

    @property
    def rows(self) -> int:
        """Channel pairs (u, v)."""
        return (self.last - self.first) * self.path.mul2

    @property
    def items(self) -> int:
        """Values of all output components."""
        return self.rows * self.path.coupling.dim_out

    @property
    def weight_offset(self) -> int:
        """Column of the first weight."""
        return self.path.weight_offset + self.first * self.path.mul2 * self.path.out.mul


@dataclass(frozen=True)
class Stack:
    """Weight matrices of one output block, one below the other."""

    i_out: int
    out: MulIrrep
    base: int  # index in the turn's vectors where its first row begins
    rows: int
    # first row of each run of contiguous weights, and the column where its weights start
    segments: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Body:
    """Code that runs over channels of one input block, a lane per channel."""

    i_in1: int
    in1: MulIrrep
    first: int  # channels first .. last - 1
    last: int
    pieces: tuple[Piece, ...]  # all with weight matrices, or all of mode ``uvu``

    @property
    def mode(self) -> str:
        """Mode of the paths, the same for all."""
        return self.pieces[0].path.mode


@dataclass(frozen=True)
class Turn:
    """Paths whose vectors are in shared memory at the same time."""

    bodies: tuple[Body, ...]
    stacks: tuple[Stack, ...]
    items: int


def _vectors(spec: KernelSpec) -> tuple[str, ...]:
    """Name the vectors of channel pairs that a pass needs.

    ``left_w`` multiplies the weight matrix from the left, ``left_c`` its cotangent. ``pull_w`` and
    ``pull_c`` are the products of the two matrices with the output's gradient.
    """
    double = spec.kind == "double_backward"
    sums = spec.kind == "forward" or (double and spec.wanted("g"))
    moved = not double or spec.has("x") or spec.has("y")
    pulls_w = spec.wanted("x") or spec.wanted("y")
    if double:
        pulls_w = (spec.wanted("x") and spec.has("y")) or (spec.wanted("y") and spec.has("x"))
    needed = {
        "left_w": moved and (sums or spec.wanted("w")),
        "left_c": sums and spec.has("w"),
        "pull_w": pulls_w,
        "pull_c": spec.has("w") and (spec.wanted("x") or spec.wanted("y")),
    }
    return tuple(name for name, need in needed.items() if need)


def _turns(lowered: LoweredProblem, limit: int) -> list[list[Piece]]:
    """Distribute channels so that each turn has at most ``limit`` values."""
    turns: list[list[Piece]] = [[]]
    used = 0
    paths = [path for path in lowered.paths if path.mode == "uvw" and path.v == 0]
    for path in sorted(paths, key=lambda path: path.i_in1):
        per_channel = path.mul2 * path.coupling.dim_out
        if per_channel > limit:
            raise UnsupportedProblemError(
                f"problem {lowered.problem.key()} has {path.mul2} copies of an irrep in its edge "
                f"attributes, more than one CUDA block can take ({limit} values): split the block"
            )
        first = 0
        while first < path.in1.mul:
            left = path.in1.mul - first
            room = (limit - used) // per_channel
            if room < left and turns[-1]:
                turns.append([])
                used = 0
                continue
            count = min(left, room)
            if WARP < count < left:
                count -= count % WARP
            turns[-1].append(Piece(path, first, first + count))
            used += count * per_channel
            first += count
    return turns


def _stacks(pieces: list[Piece]) -> tuple[list[Piece], tuple[Stack, ...], int]:
    """Order pieces by output block and weight column, and place their vectors one by one."""
    placed: list[Piece] = []
    stacks = []
    items = 0
    for i_out in sorted({piece.path.i_out for piece in pieces}):
        members = sorted(
            (piece for piece in pieces if piece.path.i_out == i_out),
            key=lambda piece: piece.weight_offset,
        )
        base, rows = items, 0
        segments: list[tuple[int, int]] = []
        out = members[0].path.out
        for piece in members:
            placed.append(Piece(piece.path, piece.first, piece.last, items))
            if not segments or piece.weight_offset != segments[-1][1] + out.mul * (
                rows - segments[-1][0]
            ):
                segments.append((rows, piece.weight_offset))
            rows += piece.rows
            items += piece.items
        stacks.append(Stack(i_out, out, base, rows, tuple(segments)))
    return placed, tuple(stacks), items


def _bodies(pieces: list[Piece]) -> tuple[Body, ...]:
    """Group pieces that read the same channels into bodies of limited length."""
    groups: dict[tuple[int, int, int, int], list[Piece]] = {}
    for piece in pieces:
        path = piece.path
        # a body loops over the copies v of one block of the edge attributes
        copies = path.first_nonzero if path.mul2 > 1 else -1
        groups.setdefault((path.i_in1, piece.first, piece.last, copies), []).append(piece)
    bodies = []
    for (i_in1, first, last, _), members in sorted(groups.items()):
        part: list[Piece] = []
        entries = attributes = 0
        for piece in members:
            path = piece.path
            more = len(path.coupling.entries)
            if part and (
                entries + more > _BODY_ENTRIES
                or attributes + path.coupling.num_nonzeros > _BODY_ATTRIBUTES
            ):
                bodies.append(Body(i_in1, part[0].path.in1, first, last, tuple(part)))
                part, entries, attributes = [], 0, 0
            part.append(piece)
            entries += more
            attributes += path.coupling.num_nonzeros
        bodies.append(Body(i_in1, part[0].path.in1, first, last, tuple(part)))
    return tuple(bodies)


@dataclass(frozen=True)
class UvwLayout:
    """Turns of a kernel and the shared memory of a warp, in items of T."""

    turns: tuple[Turn, ...]
    # where vectors ("left_w", ...) and rows ("out", "dx", "dy") of a warp start; other rows are
    # summed in global memory
    places: dict[str, int]
    widths: dict[str, int]  # items of a row of "out", "dx" and "dy"
    # block i: where it starts in a packed row of "dx", and the distance of its components.
    # Deterministic sums by sender read packed rows. Empty: rows are not packed.
    packed: dict[int, tuple[int, int]]
    items: int  # per warp, whole 16-byte words
    warps: int  # per block
    deterministic: bool

    @classmethod
    def of(cls, lowered: LoweredProblem, plan: CudaPlan, spec: KernelSpec) -> UvwLayout:
        """Lay out a pass.

        Raises
        ------
        UnsupportedProblemError
            A single channel needs more shared memory than a block has.
        """
        problem = lowered.problem
        itemsize = ITEMSIZE[problem.dtype]
        names = _vectors(spec)
        sides = {"out": problem.irreps_out, "dx": problem.irreps_in1, "dy": problem.irreps_in2}
        widths = {name: irreps.dim for name, irreps in sides.items()}
        packed = {}
        if spec.conv and plan.deterministic:
            widths["dx"], starts = packed_row(problem.irreps_in1, plan.padded)
            packed = {
                i: (start, plan.padded(block.mul))
                for i, (start, block) in enumerate(zip(starts, problem.irreps_in1, strict=True))
            }
        sums = spec.kind == "forward" or spec.wanted("g")
        needed = {"out": sums, "dx": spec.wanted("x"), "dy": spec.wanted("y")}
        rows = {
            name: width
            for name, width in widths.items()
            if needed[name] and width * itemsize <= _ROW_BYTES
        }
        matrices = [path for path in lowered.paths if path.mode == "uvw"]
        most = max((path.mul2 * path.coupling.dim_out for path in matrices), default=1)
        kept = itemsize * sum(rows.values())
        count = max(1, len(names))
        limit = max(
            min(plan.uvw.scratch, _SHARED_BYTES - kept) // (itemsize * count),
            min(most, (_SHARED_BYTES - kept - 64) // (itemsize * count)),
        )
        turns = []
        for pieces in _turns(lowered, limit):
            if pieces:
                placed, stacks, items = _stacks(pieces)
                turns.append(Turn(_bodies(placed), stacks, items))
        diagonal = [
            Piece(path, 0, path.in1.mul)
            for path in lowered.paths
            if path.mode == "uvu" and path.v == 0
        ]
        if diagonal:
            turns.append(Turn(_bodies(diagonal), (), 0))
        size = max((turn.items for turn in turns), default=0)
        places, total = {}, 0
        for name, items in [*((name, size) for name in names), *rows.items()]:
            places[name] = total
            total += items
        quad = 16 // itemsize
        total = max(quad, -(-total // quad) * quad)
        # no two warps may add to the same row
        adds = (sums and "out" not in rows) or (problem.shared_weights and bool(diagonal))
        warps = 1 if plan.deterministic and adds else plan.uvw.warps
        while warps > 1 and warps * total * itemsize > _SHARED_BYTES:
            warps //= 2
        return cls(tuple(turns), places, widths, packed, total, warps, plan.deterministic)
