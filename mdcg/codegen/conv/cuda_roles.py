"""What each warp of a block does: an input block's channels, and as many paths as fit registers."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan.device import WARP, CudaTile
from ...plan.host import ITEMSIZE
from ...problem import MulIrrep
from ..common.lowering import LoweredPath, LoweredProblem

__all__ = ["Role", "RoleSet", "role_sets"]


@dataclass(frozen=True)
class Role:
    """Paths of one input block, evaluated by ``chunks`` warps that share the code."""

    i_in1: int  # position of the input block
    in1: MulIrrep
    channels: int  # consecutive channels per lane
    chunks: int  # warps; warp ``c`` takes channels from ``c * 32 * channels``
    paths: tuple[LoweredPath, ...]

    @property
    def outputs(self) -> dict[int, MulIrrep]:
        """Output blocks by position, in order of first use."""
        return {path.i_out: path.out for path in self.paths}

    @property
    def whole(self) -> bool:
        """Whether the channels fill all lanes."""
        return self.in1.mul == WARP * self.channels * self.chunks


@dataclass(frozen=True)
class RoleSet:
    """Roles of one kernel."""

    roles: tuple[Role, ...]
    groups: tuple[int, ...]  # positions of the nonzero groups its paths read

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return sum(role.chunks for role in self.roles)

    def starts(self) -> list[tuple[Role, int]]:
        """Return the roles and the first warp of each."""
        return [(role, sum(r.chunks for r in self.roles[:i])) for i, role in enumerate(self.roles)]


def _roles(lowered: LoweredProblem, tile: CudaTile) -> list[Role]:
    words = ITEMSIZE[lowered.problem.dtype] // 4
    by_input: dict[int, list[LoweredPath]] = {}
    for path in lowered.paths:
        by_input.setdefault(path.i_in1, []).append(path)
    roles = []
    for i_in1, paths in sorted(by_input.items()):
        in1 = paths[0].in1
        channels = 1
        while channels < tile.channels and WARP * channels < in1.mul:
            channels *= 2
        chunks = -(-in1.mul // (WARP * channels))
        limit = max(1, tile.components // (channels * words))
        part: list[LoweredPath] = []
        outputs: dict[int, int] = {}
        for path in paths:
            grown = outputs | {path.i_out: path.out.ir.dim}
            if part and sum(grown.values()) > limit:
                roles.append(Role(i_in1, in1, channels, chunks, tuple(part)))
                part, grown = [], {path.i_out: path.out.ir.dim}
            part.append(path)
            outputs = grown
        roles.append(Role(i_in1, in1, channels, chunks, tuple(part)))
    return roles


def _work(role: Role) -> int:
    return role.chunks * sum(len(path.coupling.entries) for path in role.paths)


def role_sets(
    lowered: LoweredProblem, tile: CudaTile, *, alone: bool = False
) -> tuple[RoleSet, ...]:
    """Distribute a problem over warps and kernels.

    `alone`: no two roles of a kernel share a block of the input or the output, so that the order of
    all sums is that of the kernels.
    """
    sets: list[list[Role]] = []
    for role in _roles(lowered, tile):
        apart = alone and any(
            role.i_in1 == r.i_in1 or role.outputs.keys() & r.outputs.keys()
            for r in (sets[-1] if sets else [])
        )
        if sets and not apart and sum(r.chunks for r in sets[-1]) + role.chunks <= tile.warps:
            sets[-1].append(role)
        else:
            sets.append([role])
    if not alone:  # the longest first: blocks of the shortest fill the device at the end
        sets.sort(key=lambda roles: -sum(_work(role) for role in roles))
    first = {group.first: i for i, group in enumerate(lowered.groups) if group.forms}
    found = []
    for roles in sets:
        paths = [path for role in roles for path in role.paths if path.coupling.num_nonzeros]
        groups = sorted({first[path.first_nonzero] for path in paths})
        found.append(RoleSet(tuple(roles), tuple(groups)))
    return tuple(found)
