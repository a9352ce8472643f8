"""Distributes a problem over warps: some channels of an input block, and the paths that fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...plan.device import WARP, CudaTile
from ...plan.host import ITEMSIZE
from ...problem import MulIrrep
from ..common.lowering import LoweredPath, LoweredProblem

__all__ = ["TaskSet", "WarpTask", "task_sets"]


@dataclass(frozen=True)
class WarpTask:
    """Paths of one input block, evaluated by ``chunks`` warps that share the code."""

    i_in1: int  # index of the input block
    in1: MulIrrep
    channels: int  # consecutive channels per lane
    chunks: int  # warps; the channels of warp ``c`` begin at ``c * 32 * channels``
    paths: tuple[LoweredPath, ...]

    @property
    def outputs(self) -> dict[int, MulIrrep]:
        """Output blocks by index, in order of first use."""
        return {path.i_out: path.out for path in self.paths}

    @property
    def whole(self) -> bool:
        """Whether the channels fill all lanes."""
        return self.in1.mul == WARP * self.channels * self.chunks


@dataclass(frozen=True)
class TaskSet:
    """Tasks of one kernel."""

    tasks: tuple[WarpTask, ...]
    groups: tuple[int, ...]  # indices of the nonzero groups that its paths read

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return sum(task.chunks for task in self.tasks)

    def starts(self) -> list[tuple[WarpTask, int]]:
        """Return the tasks and the first warp of each."""
        return [(task, sum(r.chunks for r in self.tasks[:i])) for i, task in enumerate(self.tasks)]


def _tasks(
    lowered: LoweredProblem, tile: CudaTile, fits: Callable[[WarpTask], bool] | None
) -> list[WarpTask]:
    by_input: dict[int, list[LoweredPath]] = {}
    for path in lowered.paths:
        by_input.setdefault(path.i_in1, []).append(path)
    tasks = []
    for i_in1 in sorted(by_input):
        paths, channels = by_input[i_in1], 1
        while channels < tile.channels and WARP * channels < paths[0].in1.mul:
            channels *= 2
        limit = tile.components * 4 // ITEMSIZE[lowered.problem.dtype]
        found = _split(paths, channels, limit)
        while fits and channels > 1 and not all(map(fits, found)):
            channels //= 2
            found = _split(paths, channels, limit)
        tasks += found
    return tasks


def _split(paths: list[LoweredPath], channels: int, limit: int) -> list[WarpTask]:
    """Return tasks of consecutive paths of one input block.

    A task has at most `limit` sums per lane (components of outputs times channels), unless it is a
    single path.
    """
    tasks: list[WarpTask] = []
    for path in paths:
        task = WarpTask(
            path.i_in1, path.in1, channels, -(-path.in1.mul // (WARP * channels)), (path,)
        )
        joined = replace(task, paths=(*tasks[-1].paths, path)) if tasks else task
        if tasks and sum(b.ir.dim for b in joined.outputs.values()) <= max(1, limit // channels):
            tasks[-1] = joined
        else:
            tasks.append(task)
    return tasks


def _work(task: WarpTask) -> int:
    return task.chunks * sum(len(path.coupling.entries) for path in task.paths)


def task_sets(
    lowered: LoweredProblem,
    tile: CudaTile,
    *,
    no_shared_blocks: bool = False,
    fits: Callable[[WarpTask], bool] | None = None,
) -> tuple[TaskSet, ...]:
    """Distribute a problem over warps and kernels.

    With `no_shared_blocks`, no two tasks of a kernel share a block of the input or the output, so
    that only the order of the kernels decides the order of sums. The channels per lane of an input
    block are halved until `fits` returns true for all its tasks.
    """
    sets: list[list[WarpTask]] = []
    for task in _tasks(lowered, tile, fits):
        apart = no_shared_blocks and any(
            task.i_in1 == r.i_in1 or task.outputs.keys() & r.outputs.keys()
            for r in (sets[-1] if sets else [])
        )
        if sets and not apart and sum(r.chunks for r in sets[-1]) + task.chunks <= tile.warps:
            sets[-1].append(task)
        else:
            sets.append([task])
    if not no_shared_blocks:  # the longest first: short blocks fill the device at the end
        sets.sort(key=lambda tasks: -sum(_work(task) for task in tasks))
    first = {group.first: i for i, group in enumerate(lowered.groups) if group.forms}
    found = []
    for tasks in sets:
        paths = [path for task in tasks for path in task.paths if path.coupling.num_nonzeros]
        groups = sorted({first[path.first_nonzero] for path in paths})
        found.append(TaskSet(tuple(tasks), tuple(groups)))
    return tuple(found)
