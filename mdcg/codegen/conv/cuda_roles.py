"""What each warp of a block does: an input block's channels, and as many paths as fit registers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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


def _roles(
    lowered: LoweredProblem, tile: CudaTile, fits: Callable[[Role], bool] | None
) -> list[Role]:
    by_input: dict[int, list[LoweredPath]] = {}
    for path in lowered.paths:
        by_input.setdefault(path.i_in1, []).append(path)
    roles = []
    for i_in1 in sorted(by_input):
        paths, channels = by_input[i_in1], 1
        while channels < tile.channels and WARP * channels < paths[0].in1.mul:
            channels *= 2
        limit = tile.components * 4 // ITEMSIZE[lowered.problem.dtype]
        found = _split(paths, channels, limit)
        while fits and channels > 1 and not all(map(fits, found)):
            channels //= 2
            found = _split(paths, channels, limit)
        roles += found
    return roles


def _split(paths: list[LoweredPath], channels: int, limit: int) -> list[Role]:
    """Return roles of consecutive paths of one input block.

    A role has at most `limit` sums per lane (components of outputs times channels), unless it is a
    single path.
    """
    roles: list[Role] = []
    for path in paths:
        role = Role(path.i_in1, path.in1, channels, -(-path.in1.mul // (WARP * channels)), (path,))
        joined = replace(role, paths=(*roles[-1].paths, path)) if roles else role
        if roles and sum(b.ir.dim for b in joined.outputs.values()) <= max(1, limit // channels):
            roles[-1] = joined
        else:
            roles.append(role)
    return roles


def _work(role: Role) -> int:
    return role.chunks * sum(len(path.coupling.entries) for path in role.paths)


def role_sets(
    lowered: LoweredProblem,
    tile: CudaTile,
    *,
    alone: bool = False,
    fits: Callable[[Role], bool] | None = None,
) -> tuple[RoleSet, ...]:
    """Distribute a problem over warps and kernels.

    `alone`: no two roles of a kernel share a block of the input or the output, so that the order of
    all sums is that of the kernels. `fits`: an input block takes fewer channels per lane, if more
    than one, until this is true of all its roles.
    """
    sets: list[list[Role]] = []
    for role in _roles(lowered, tile, fits):
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
