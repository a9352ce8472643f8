"""CUDA text of a warp's ring in shared memory: operands of the next edges, on their way.

Copies run while earlier edges are evaluated, and take no registers, so that enough bytes are in
flight to fill the memory's bandwidth. A warp copies only what its own lanes read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...plan import CudaPlan
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import packed_row
from ..common.spec import KernelSpec
from .warp_tasks import TaskSet, WarpTask

__all__ = ["Ring", "RingPlace", "place_ring"]

# Bytes of one copy.
_CHUNK = 16

# Shared memory the rings of a block may take.
_RING_BYTES = 40 * 1024


@dataclass(frozen=True)
class RingPlace:
    """Where the rings of a block's warps lie in shared memory."""

    depth: int = 1  # entries of each, a power of two; 1: there are none
    # start of the first, and length of each, in units of T
    start: int = 0
    items: int = 0
    # by task; those that have none load operands into registers
    rings: dict[WarpTask, Ring | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Source:
    """Operands copied from rows of one array."""

    pointer: str  # array, and row of the edge
    names: tuple[str, ...]  # registers the operands are taken into
    starts: tuple[int, ...]  # where each begins in the row
    items: int  # channels of an operand that exist; later ones are zeros
    once: bool  # read by one block only
    # the operands are components of ``mul_ir``, next to each other for each channel; ``starts`` has
    # one number
    mixed: bool = False


@dataclass(frozen=True)
class Ring:
    """What a warp of one task copies per edge, and where it lies in an entry of the ring."""

    sources: tuple[_Source, ...]
    width: int  # items of an operand: all channels of the warp
    channels: int  # per lane
    itemsize: int  # bytes
    depth: int  # entries, a power of two

    @classmethod
    def of(
        cls,
        task: WarpTask,
        problem: ConvProblem,
        plan: CudaPlan,
        spec: KernelSpec,
        *,
        depth: int,
        plain: bool,
    ) -> Ring | None:
        """Return the ring of a task; None where rows are not whole 16-byte words.

        With a `depth` below 2 there is none. `plain`: node features are copied as the user stores
        them, ``mul_ir``; else from packed rows.
        """
        itemsize = ITEMSIZE[problem.dtype]
        chunk = _CHUNK // itemsize
        width = WARP * task.channels
        weighted = [(i, path) for i, path in enumerate(task.paths) if path.has_weight]
        pad, dim = plan.padded(task.in1.mul), task.in1.ir.dim
        starts: tuple[int, ...]
        if plain:
            row, starts = problem.irreps_in1.dim, (task.in1.offset,)
        else:
            row, offsets = packed_row(problem.irreps_in1, plan.padded)
            starts = tuple(offsets[task.i_in1] + a * pad for a in range(dim))
        fits = (
            depth > 1
            and spec.conv
            and not problem.shared_weights
            and all(path.mul2 == 1 and path.weight_offset % chunk == 0 for _, path in weighted)
            and problem.weight_numel % chunk == task.in1.mul % chunk == 0
            and row % chunk == starts[0] % chunk == 0
            and WARP * _CHUNK % (width * itemsize) == 0
            and not (plain and problem.layout != "mul_ir")
        )
        if not fits:
            return None
        sources = []
        for letter, array, present in (("w", "w", True), ("c", "wc", spec.has("w"))):
            if present and weighted:
                sources.append(
                    _Source(
                        f"p.{array} + e * {problem.weight_numel}",
                        tuple(f"{letter}{i}" for i, _ in weighted),
                        tuple(path.weight_offset for _, path in weighted),
                        task.in1.mul,
                        once=True,
                    )
                )
        for letter, array, present in (("x", "x", True), ("a", "xa", spec.has("x"))):
            if present:
                sources.append(
                    _Source(
                        f"p.{array} + s * {row}",
                        tuple(f"{letter}{a}" for a in range(dim)),
                        starts,
                        task.in1.mul if plain else pad,
                        once=False,
                        mixed=plain and dim > 1,
                    )
                )
        return cls(tuple(sources), width, task.channels, itemsize, depth)

    @property
    def entry(self) -> int:
        """Items of one entry."""
        return self.width * sum(len(source.names) for source in self.sources)

    @property
    def nbytes(self) -> int:
        """Bytes of a warp's ring."""
        return self.depth * self.entry * self.itemsize

    def copies(self) -> list[str]:
        """Return the definition of ``copy(entry, e, s)``, which starts copying an edge's rows."""
        chunk = _CHUNK // self.itemsize
        per = self.width // chunk  # chunks of an operand
        lines = [f"const int channel = chunk * {self.width} + lane % {per} * {chunk};"]
        if per < WARP:
            lines.append(f"const int part = lane / {per};")
        lines += [
            "const auto copy = [&](int entry, Long e, Long s) {",
            f"    T* const to = ring + entry * {self.entry} + lane * {chunk};",
        ]
        position = 0
        for source in self.sources:
            write = self._mixed_copies if source.mixed else self._operand_copies
            lines += ["    {", *(f"        {line}" for line in write(source, position)), "    }"]
            position += len(source.names)
        return [*lines, "    copy_commit();", "};"]

    def _operand_copies(self, source: _Source, position: int) -> list[str]:
        together = WARP * _CHUNK // (self.width * self.itemsize)  # operands per instruction
        place, size = _guarded("channel", source.items, self.width)
        lines = [f"const T* const from = {source.pointer} + {place};"]
        for first in range(0, len(source.names), together):
            starts = source.starts[first : first + together]
            guard = f"if (part < {len(starts)}) " if len(starts) < together else ""
            to = (position + first) * self.width
            lines.append(
                f"{guard}{_function(source)}(to + {to}, from + {_choose(starts)}, {size});"
            )
        return lines

    def _mixed_copies(self, source: _Source, position: int) -> list[str]:
        dim, chunk = len(source.names), _CHUNK // self.itemsize
        chunks = dim * self.width // chunk
        lines = [f"const T* const from = {source.pointer} + {source.starts[0]};"]
        for first in range(0, chunks, WARP):
            item = f"chunk * {self.width * dim} + (lane + {first}) * {chunk}"
            place, size = _guarded(f"({item})", source.items * dim, self.width * dim)
            guard = f"if (lane < {chunks - first}) " if chunks - first < WARP else ""
            to = position * self.width + first * chunk
            lines.append(f"{guard}{_function(source)}(to + {to}, from + {place}, {size});")
        return lines

    def takes(self) -> list[str]:
        """Return the loads of an edge's operands from entry ``at``."""
        lines, position = [], 0
        for source in self.sources:
            start = position * self.width
            for i, name in enumerate(source.names):
                if source.mixed:
                    dim = len(source.names)
                    place = f"at + {start + i} + lane * {self.channels * dim}"
                    text = f"take_some<{self.channels}, {dim}>({place})"
                else:
                    place = f"at + {start + i * self.width} + lane * {self.channels}"
                    text = f"*(const V*)({place})"
                lines.append(f"const V {name} = {text};")
            position += len(source.names)
        return lines


def _function(source: _Source) -> str:
    return "copy_once" if source.once else "copy_some"


def _guarded(place: str, items: int, width: int) -> tuple[str, str]:
    """Return an index and the bytes to copy from it: none past ``items``."""
    if items % width == 0:
        return place, "16"
    return f"({place} < {items} ? {place} : 0)", f"{place} < {items} ? 16 : 0"


def _choose(values: tuple[int, ...]) -> str:
    """Print a constant that depends on ``part``."""
    text = str(values[-1])
    for i in reversed(range(len(values) - 1)):
        text = f"(part == {i} ? {values[i]} : {text})"
    return text


def place_ring(
    kernel: TaskSet,
    problem: ConvProblem,
    plan: CudaPlan,
    spec: KernelSpec,
    *,
    depth: int,
    plain: bool,
    start: int,
) -> RingPlace:
    """Return rings of at most `depth` entries that fit, behind `start` items of shared memory."""
    while depth > 1:
        rings = {
            task: Ring.of(task, problem, plan, spec, depth=depth, plain=plain)
            for task in kernel.tasks
        }
        longest = max((ring.nbytes for ring in rings.values() if ring is not None), default=0)
        if kernel.warps * longest <= _RING_BYTES:
            return RingPlace(depth, start, longest // ITEMSIZE[problem.dtype], rings)
        depth //= 2
    return RingPlace()
