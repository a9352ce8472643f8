"""CUDA text of a warp's ring in shared memory: operands of the next edges, on their way.

Copies run while earlier edges are evaluated, and take no registers, so that enough bytes are in
flight to fill the memory's bandwidth. A warp copies only what its own lanes read.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..plan import CudaPlan
from ..plan.device import WARP
from ..plan.host import ITEMSIZE
from ..problem import ConvProblem
from .cuda_roles import Role
from .spec import KernelSpec

__all__ = ["Ring"]

# Bytes of one copy.
_CHUNK = 16


@dataclass(frozen=True)
class _Source:
    """Operands copied from rows of one array.

    Attributes
    ----------
    pointer : str
        Array, and row of the edge.
    names : tuple of str
        Registers the operands are taken into.
    starts : tuple of int
        Where each begins in the row.
    items : int
        Channels of an operand that exist; later ones are zeros.
    once : bool
        Read by one block only.
    """

    pointer: str
    names: tuple[str, ...]
    starts: tuple[int, ...]
    items: int
    once: bool


@dataclass(frozen=True)
class Ring:
    """What a warp of one role copies per edge, and where it lies in an entry of the ring.

    Attributes
    ----------
    sources : tuple of _Source
    width : int
        Items of an operand: all channels of the warp.
    channels : int
        Per lane.
    itemsize : int
        Bytes.
    depth : int
        Entries, a power of two.
    """

    sources: tuple[_Source, ...]
    width: int
    channels: int
    itemsize: int
    depth: int

    @classmethod
    def of(
        cls,
        role: Role,
        problem: ConvProblem,
        plan: CudaPlan,
        spec: KernelSpec,
        place: tuple[int, int],
        depth: int,
    ) -> Ring | None:
        """Return the ring of a role; None where rows are no whole 16-byte words.

        Parameters
        ----------
        role : Role
        problem : ConvProblem
        plan : CudaPlan
        spec : KernelSpec
        place : tuple of int
            Length of a packed row of node features, and start of the role's block in it.
        depth : int
            Entries; below 2 there is no ring.
        """
        itemsize = ITEMSIZE[problem.dtype]
        chunk = _CHUNK // itemsize
        width = WARP * role.channels
        weighted = [(i, path) for i, path in enumerate(role.paths) if path.has_weight]
        row, start = place
        pad = plan.padded(role.in1.mul)
        fits = (
            depth > 1
            and spec.conv
            and not problem.shared_weights
            and all(path.mul2 == 1 and path.weight_offset % chunk == 0 for _, path in weighted)
            and problem.weight_numel % chunk == role.in1.mul % chunk == 0
            and row % chunk == start % chunk == 0
            and WARP * _CHUNK % (width * itemsize) == 0
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
                        role.in1.mul,
                        once=True,
                    )
                )
        dim = role.in1.ir.dim
        for letter, array, present in (("x", "x", True), ("a", "xa", spec.has("x"))):
            if present:
                sources.append(
                    _Source(
                        f"p.{array} + s * {row}",
                        tuple(f"{letter}{a}" for a in range(dim)),
                        tuple(start + a * pad for a in range(dim)),
                        pad,
                        once=False,
                    )
                )
        return cls(tuple(sources), width, role.channels, itemsize, depth)

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
        together = WARP // per  # operands a warp copies with one instruction
        lines = [f"const int item = lane % {per} * {chunk}, channel = chunk * {self.width} + item;"]
        if together > 1:
            lines.append(f"const int part = lane / {per};")
        lines.append("const auto copy = [&](int entry, Long e, Long s) {")
        lines.append(f"    T* const to = ring + entry * {self.entry} + lane * {chunk};")
        position = 0
        for source in self.sources:
            count = len(source.names)
            whole = source.items % self.width == 0
            size = "16" if whole else f"channel < {source.items} ? 16 : 0"
            lines += ["    {", f"        const T* const from = {source.pointer} + channel;"]
            if not whole:  # nothing is read, but the address has to be one
                lines[-1] = lines[-1].replace(
                    "+ channel", f"+ (channel < {source.items} ? channel : 0)"
                )
            function = "copy_once" if source.once else "copy_some"
            for first in range(0, count, together):
                starts = source.starts[first : first + together]
                guard = f"if (part < {len(starts)}) " if len(starts) < together else ""
                place = (position + first) * self.width
                lines.append(
                    f"        {guard}{function}(to + {place}, from + {_choose(starts)}, {size});"
                )
            position += count
            lines.append("    }")
        return [*lines, "    copy_commit();", "};"]

    def takes(self) -> list[str]:
        """Return the loads of an edge's operands from entry ``at``."""
        names = [name for source in self.sources for name in source.names]
        return [
            f"const V {name} = *(const V*)(at + {i * self.width});" for i, name in enumerate(names)
        ]


def _choose(values: tuple[int, ...]) -> str:
    """Print a constant that depends on ``part``."""
    text = str(values[-1])
    for i in reversed(range(len(values) - 1)):
        text = f"(part == {i} ? {values[i]} : {text})"
    return text
