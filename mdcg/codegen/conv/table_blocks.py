"""Divides the engine's fused convolutions into kernels, and sizes their thread blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...plan.device import WARP, CudaTile
from ...plan.host import ITEMSIZE
from ...plan.table_conv import TableConvTile
from ..common.emit import resident_blocks
from ..common.lowering import LoweredProblem
from .path_matrices import PathMatrices
from .warp_tasks import TaskSet, WarpTask, task_sets

# KernelStreams::KERNELS in csrc/engine/cuda/kernel_streams.hpp.
MAX_STREAMS = 4
# Most receivers of a group: DeviceEdges::GROUP.
GROUP = 3
# Most threads of a block with several warp groups. Each can have 255 registers.
_MAX_GROUP_THREADS = 256
# (words, blocks): a multiprocessor holds this many blocks of 4 warps if a lane of the backward pass
# keeps at most this many 4-byte words from edge to edge. Words and registers of compiled kernels:
# vectors of MACE medium 96 and 252, its scalars 64 and 168, NequIP S 12 and 120.
_RESIDENT = ((24, 4), (64, 3))

__all__ = [
    "GROUP",
    "MAX_STREAMS",
    "TableBlock",
    "estimated_resident",
    "kernel_sets",
    "streams_of",
]


@dataclass(frozen=True)
class TableBlock:
    """Sizes of a kernel's thread block, which SharedMemory in csrc/kernels/conv checks."""

    kernel: TaskSet
    lowered: LoweredProblem
    tile: TableConvTile
    forward: bool
    wants_x: bool
    most_shared: int

    @property
    def itemsize(self) -> int:
        """Bytes of an item."""
        return ITEMSIZE[self.lowered.problem.dtype]

    @cached_property
    def matrices(self) -> PathMatrices:
        """Path matrices of an edge, and which warps evaluate them."""
        return PathMatrices.of(self.lowered, self.kernel, self.warps, 16 // self.itemsize)

    @property
    def slices(self) -> int:
        """Parts of a batch. Each part has its own warps for all channels of the kernel."""
        return 1 if self.forward else max(1, self.tile.min_warps // self.kernel.warps)

    @property
    def max_warp_groups(self) -> int:
        """Most warp groups of a block. Each takes a part of the edges (forward pass)."""
        if not self.forward:
            return 1
        fit = min(_MAX_GROUP_THREADS // self.threads, self.most_shared // self._group_bytes)
        return max(1, fit)

    @property
    def warps(self) -> int:
        """Warps of a block; in the forward pass, of each warp group."""
        return self.kernel.warps * self.slices

    @property
    def threads(self) -> int:
        """Threads of a block; in the forward pass, of each warp group."""
        return self.warps * WARP

    @property
    def resident(self) -> int:
        """Blocks per multiprocessor that registers must suffice for; 0: the compiler chooses."""
        held = max(map(held_per_lane, self.kernel.tasks))
        registers = next((limit for most, limit in self.tile.registers if held <= most), 0)
        blocks = resident_blocks(self.max_warp_groups * self.threads, registers)
        return blocks if blocks > 1 else 0

    @property
    def edges_at_once(self) -> int:
        """Edges per iteration of the forward pass's loop."""
        fit = all(
            held_per_lane(task) <= self.tile.max_values_for_two_edges for task in self.kernel.tasks
        )
        return 2 if fit else 1

    @property
    def records(self) -> int:
        """Records of a batch; the forward pass appends records of its first edges."""
        return self.tile.batch + (self.edges_at_once if self.forward else 0)

    @property
    def batch_bytes(self) -> int:
        """Bytes of two batches: records, path matrices and, backward, sums over lanes."""
        batch, size = self.tile.batch, self.itemsize
        record = -(-(8 + size if self.forward else 24 + 6 * size) // 16) * 16
        items = batch * self.matrices.stride
        if not self.forward:
            items += self.kernel.warps * batch * (self.lowered.problem.irreps_in2.dim | 1)
        return -(-2 * (self.records * record + items * size) // 16) * 16

    @property
    def held_items(self) -> int:
        """Items per warp for the receivers' gradients and features; 0: they do not fit."""
        values = [
            task.channels * (_components(task) + task.in1.ir.dim) for task in self.kernel.tasks
        ]
        items = GROUP * WARP * max(values)
        fits = self.batch_bytes + self._bytes(items, self.sum_items) <= self.most_shared
        return items if fits and not self.forward else 0

    @property
    def sum_items(self) -> int:
        """Items per warp for sums: gradients of the group's features, or outputs."""
        tasks = self.kernel.tasks
        if self.forward:
            return WARP * max(task.channels * _components(task) for task in tasks)
        values = [task.channels * task.in1.ir.dim for task in tasks]
        return GROUP * WARP * max(values) if self.wants_x else 0

    def _bytes(self, held: int, sums: int) -> int:
        return (self.kernel.warps * held + self.warps * sums) * self.itemsize

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block; in the forward pass, of each warp group."""
        if self.forward:
            return self._group_bytes if self.max_warp_groups > 1 else self.batch_bytes
        return self.batch_bytes + self._bytes(self.held_items, self.sum_items)

    @property
    def _group_bytes(self) -> int:
        return max(self.batch_bytes, self._bytes(0, self.sum_items))


def kernel_sets(lowered: LoweredProblem, tile: TableConvTile, words: int) -> list[TaskSet]:
    """Return the kernels. Consecutive tasks of similar work share one and its path matrices."""
    found: list[TaskSet] = []
    of_one_task = CudaTile(channels=2, components=tile.components * words, warps=1)

    def fits(task: WarpTask) -> bool:
        return held_per_lane(task) <= tile.max_values_for_two_channels

    for single in task_sets(lowered, of_one_task, no_shared_blocks=True, fits=fits):
        task = single.tasks[0]
        if found and _joins(found[-1].tasks, task, tile):
            groups = sorted({*found[-1].groups, *single.groups})
            found[-1] = TaskSet((*found[-1].tasks, task), tuple(groups))
        else:
            found.append(single)
    # the longest first: while its last blocks run, blocks of other kernels fill the idle
    # multiprocessors
    return sorted(found, key=lambda kernel: -sum(r.in1.mul * _operations(r) for r in kernel.tasks))


def _operations(task: WarpTask) -> int:
    """Return an estimate of the operations per edge and channel."""
    return sum(len(path.coupling.entries) + 3 for path in task.paths)


def _joins(tasks: tuple[WarpTask, ...], task: WarpTask, tile: TableConvTile) -> bool:
    """Return whether a task may join a kernel.

    The warps of a kernel wait for each other, so their work must be similar. No two tasks may
    read the same block, or write to the same block.
    """
    every = (*tasks, task)
    work = [_operations(r) for r in every]
    return (
        sum(r.chunks for r in every) <= tile.warps
        and max(map(held_per_lane, every)) <= tile.max_values_to_share
        and max(work) <= tile.imbalance * min(work)
        and not any(r.i_in1 == task.i_in1 or r.outputs.keys() & task.outputs.keys() for r in tasks)
    )


def estimated_resident(sets: list[TaskSet], words: int) -> int:
    """Estimate how many blocks of the backward pass a multiprocessor holds."""
    held = words * max(held_per_lane(task) for kernel in sets for task in kernel.tasks)
    return next((blocks for most, blocks in _RESIDENT if held <= most), 2)


def streams_of(sets: list[TaskSet], forward: bool) -> list[int]:
    """Return the stream of each kernel. Kernels that write to the same blocks share one."""
    groups: list[tuple[list[int], set[int]]] = []  # kernels, and the blocks that they write to
    for number, kernel in enumerate(sets):
        numbers = [number]
        written = {
            block for task in kernel.tasks for block in (task.outputs if forward else (task.i_in1,))
        }
        for group in [group for group in groups if group[1] & written]:
            groups.remove(group)
            numbers += group[0]
            written |= group[1]
        groups.append((numbers, written))
    streams = [0] * len(sets)
    for stream, (numbers, _) in enumerate(sorted(groups, key=lambda group: min(group[0]))):
        for number in numbers:
            streams[number] = min(stream, MAX_STREAMS - 1)
    return streams


def held_per_lane(task: WarpTask) -> int:
    """Return how many values a lane keeps from edge to edge; each path's polynomial counts 4."""
    return task.channels * (_components(task) + 4 * len(task.paths))


def _components(task: WarpTask) -> int:
    return sum(block.ir.dim for block in task.outputs.values())
