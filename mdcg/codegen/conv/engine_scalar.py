"""Convolution of scalars that few different rows send: one product with w2 per group of edges.

See ``engine_scalar.hpp``; here are the conditions and the walk over paths.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..common.lowering import LoweredPath

__all__ = ["EnginePath", "ScalarWalk"]


@dataclass(frozen=True)
class EnginePath:
    """A path, and where its rows and its columns of weights start."""

    path: LoweredPath
    stride: int  # channels of a component, padding included
    panels: int  # panels of 64 bytes of channels that are taken at a time
    x_offset: int
    out_offset: int
    column: int


def _is_identity(path: LoweredPath) -> bool:
    c = path.coupling
    plain = all(entry.a == 0 and entry.nonzero == entry.c and entry.sign > 0 for entry in c.entries)
    return c.dim_in == 1 and plain and len(c.entries) == c.num_nonzeros == c.dim_out


class ScalarWalk:
    """Text of the passes over groups of edges."""

    def __init__(self, paths: Iterable[EnginePath], num_nonzeros: int) -> None:
        self.paths = tuple(paths)
        self.num_nonzeros = num_nonzeros
        columns = sum(path.stride for path in self.paths)
        rows = sum(path.stride * path.path.coupling.dim_out for path in self.paths)
        # the smallest group that costs less as one than edge by edge
        self.ratio = max(1, -(-rows // max(1, columns)))
        self.components = max([1, *(path.path.coupling.dim_out for path in self.paths)])

    @property
    def serves(self) -> bool:
        """Whether every path multiplies scalars by harmonics."""
        return bool(self.paths) and all(_is_identity(path.path) for path in self.paths)

    def text(self, name: str, x_width: int, out_width: int) -> list[str]:
        """Return lines that do the pass and return where groups are large enough."""
        backward = name == "backward"
        lines = []
        by_nonzeros: dict[int, list[EnginePath]] = {}
        for path in self.paths:
            by_nonzeros.setdefault(path.path.first_nonzero, []).append(path)
        for first, members in by_nonzeros.items():
            num = members[0].path.coupling.dim_out
            if backward:
                lines.append(f"zero(rows, whole_tiles(groups.count * {num}) * HS);")
            else:
                lines.append(f"take_moments<{num}>(groups, {first}, moments, rows);")
            for one in members:
                lines.append(
                    f"scalar_{name}<{one.stride}, {one.panels}, {num}>(b, groups, {one.x_offset}, "
                    f"{one.out_offset}, {one.column}, rows, w);"
                )
            if backward:
                lines.append(f"give_moments<{num}>(groups, {first}, rows, moments);")
        if backward:
            lines += ["spread_moments(b, groups, m, moments, p);"]
            lines += ["harmonics(p, edges.count, b->d_harmonics);"]
        else:
            lines.insert(0, "sum_moments(b, groups, m, moments);")
        condition = "!TABLE && !DX" if backward else "!TABLE"
        return [
            f"if constexpr ({condition}) {{",
            "    Groups groups;",
            f"    if (find_groups(b, {x_width}, {out_width}, groups)) {{",
            *(f"        {line}" for line in lines),
            "        return;",
            "    }",
            "}",
        ]
