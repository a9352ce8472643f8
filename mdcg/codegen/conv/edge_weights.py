"""Kernels of convolutions with weights per edge: the tasks of a block, and their tables.

``csrc/kernels/conv/edge_weights.cuh`` has the kernels. Python prints the constants of a pass, of
each of its kernels, and of the tasks of a kernel's warps (:mod:`mdcg.codegen.conv.warp_tasks`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...errors import UnsupportedProblemError
from ...plan import CudaPlan
from ...plan.device import WARP, CudaTile
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import (
    CudaEntry,
    CudaKernel,
    cuda_head,
    kernel_head,
    packed_row,
    resident_blocks,
)
from ..common.lowering import LoweredProblem, lower
from ..common.spec import KernelSpec
from ..common.tables import Table, argument_names, constants, kernel_file
from .path_matrices import PathMatrices
from .path_tables import Constants, components, pass_constants, path_tables
from .rows import row_kernels
from .uvw import emit_uvw
from .warp_tasks import TaskSet, WarpTask, task_sets

__all__ = ["emit_cuda"]

# Most bytes of shared memory for the path matrices of a block, and for its rings, so that several
# blocks fit on any multiprocessor.
_MATRIX_BYTES = 48 * 1024
_RING_BYTES = 40 * 1024


@dataclass(frozen=True)
class _Pass:
    """One pass of a problem, with all that its kernels and tasks depend on."""

    lowered: LoweredProblem
    plan: CudaPlan
    spec: KernelSpec

    @cached_property
    def problem(self) -> ConvProblem:
        """The problem."""
        return self.lowered.problem

    @cached_property
    def tile(self) -> CudaTile:
        """The plan's choices for this pass."""
        summing = self.spec.kind == "forward" or self.spec.wants == ("g",)
        return self.plan.forward if summing else getattr(self.plan, self.spec.kind)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a T."""
        return ITEMSIZE[self.problem.dtype]

    @cached_property
    def sets(self) -> tuple[TaskSet, ...]:
        """Tasks of every kernel."""
        return task_sets(self.lowered, self.tile, no_shared_blocks=self.plan.deterministic)

    @cached_property
    def tasks(self) -> list[WarpTask]:
        """Tasks of all kernels."""
        return [task for kernel in self.sets for task in kernel.tasks]

    @cached_property
    def shared_outputs(self) -> set[int]:
        """Indices of output blocks that several tasks add to."""
        uses = [i for task in self.tasks for i in task.outputs]
        return {i for i in uses if uses.count(i) > 1}

    @cached_property
    def shared_inputs(self) -> set[int]:
        """Indices of input blocks whose gradients several tasks add to."""
        uses = [task.i_in1 for task in self.tasks]
        return {i for i in uses if uses.count(i) > 1}

    @cached_property
    def plain(self) -> bool:
        """Whether kernels read node features in the user's layout: all tasks copy them to rings."""
        return all(self.depth(kernel, plain=True) > 1 for kernel in self.sets) and all(
            self.copies(task, plain=True) for task in self.tasks
        )

    @cached_property
    def matrix_buffers(self) -> int:
        """Batches of path matrices that a block holds."""
        return 4 if self.spec.has("y") else 2

    # -- rings of operands in shared memory ------------------------------------------------------

    def row_of(self, task: WarpTask, *, plain: bool) -> tuple[int, list[int], int]:
        """Return items of a row of features, starts of the task's components, and their stride."""
        if plain:
            starts, stride = components(task.in1, self.problem.layout)
            return self.problem.irreps_in1.dim, starts, stride
        row, offsets = packed_row(self.problem.irreps_in1, self.plan.padded)
        pad = self.plan.padded(task.in1.mul)
        return row, [offsets[task.i_in1] + a * pad for a in range(task.in1.ir.dim)], 1

    def copies(self, task: WarpTask, *, plain: bool) -> bool:
        """Return whether rows of a task's operands are whole 16-byte words, as rings need them."""
        problem, word = self.problem, 16 // self.itemsize
        row, starts, _ = self.row_of(task, plain=plain)
        weighted = [path for path in task.paths if path.has_weight]
        return (
            self.spec.conv
            and not problem.shared_weights
            and all(path.mul2 == 1 and path.weight_offset % word == 0 for path in weighted)
            and problem.weight_numel % word == task.in1.mul % word == 0
            and row % word == starts[0] % word == 0
            and WARP * word % (WARP * task.channels) == 0
            and not (plain and problem.layout != "mul_ir")
        )

    def ring_items(self, task: WarpTask) -> int:
        """Return items of one edge in the ring of a task's warp."""
        weights = sum(path.has_weight for path in task.paths) * (1 + self.spec.has("w"))
        features = task.in1.ir.dim * (1 + self.spec.has("x"))
        return WARP * task.channels * (weights + features)

    def longest(self, kernel: TaskSet, *, plain: bool) -> int:
        """Return items of one edge in the rings of a kernel's warps."""
        tasks = [task for task in kernel.tasks if self.copies(task, plain=plain)]
        return max(map(self.ring_items, tasks), default=0)

    def depth(self, kernel: TaskSet, *, plain: bool) -> int:
        """Return the edges that the rings of a kernel hold; 1: there are none."""
        depth, items = self.tile.depth, self.longest(kernel, plain=plain)
        while depth > 1 and kernel.warps * depth * items * self.itemsize > _RING_BYTES:
            depth //= 2
        return depth

    def batch(self, kernel: TaskSet, stride: int) -> int:
        """Return the edges whose path matrices a kernel evaluates at a time."""
        batch = self.tile.batch
        while batch > 1 and self.batch_bytes(kernel, stride, batch) > _MATRIX_BYTES:
            batch //= 2
        return batch

    def batch_bytes(self, kernel: TaskSet, stride: int, batch: int) -> int:
        """Return bytes of shared memory for a batch's path matrices and gradients of attributes."""
        items = stride * self.matrix_buffers
        if self.spec.wanted("y"):
            items += 2 * kernel.warps * self.problem.irreps_in2.dim
        return batch * items * self.itemsize

    # -- printed constants -----------------------------------------------------------------------

    def constants(self) -> Constants:
        """Return the constants of the pass."""
        packed, _ = packed_row(self.problem.irreps_in1, self.plan.padded)
        plain = self.problem.irreps_in1.dim
        return {
            **pass_constants(self.lowered, self.plan, self.spec),
            "ATTRIBUTES_SHARED": len(self.sets) > 1,
            "X_ROW": plain if self.plain or not self.spec.conv else packed,
            "DX_ROW": packed if self.spec.conv else plain,
        }

    def task(
        self, task: WarpTask, first_warp: int, depth: int, matrices: PathMatrices
    ) -> Constants:
        """Return the constants of a task."""
        outputs: list[tuple[int, int, bool]] = []
        first_output = {}
        for i, block in task.outputs.items():
            first_output[i] = len(outputs)
            starts, stride = components(block, self.problem.layout)
            outputs += [(start, stride, i in self.shared_outputs) for start in starts]
        weighted = [path for path in task.paths if path.has_weight]
        tables = path_tables(
            self.lowered, task.paths, first_output, matrices.starts, weighted.index
        )
        plain = self.plain or not self.spec.conv
        _, x_start, x_stride = self.row_of(task, plain=plain)
        _, dx_start, dx_stride = self.row_of(task, plain=not self.spec.conv)
        padded = self.plan.padded(task.in1.mul)
        return {
            "FIRST_WARP": first_warp,
            "CHUNKS": task.chunks,
            "CHANNELS": task.channels,
            "MUL": task.in1.mul,
            "PADDED": padded,
            "WHOLE": task.whole,
            "X_START": Table("int", x_start),
            "X_STRIDE": x_stride,
            "X_ITEMS": task.in1.mul if plain else padded,
            "DX_START": Table("int", dx_start),
            "DX_STRIDE": dx_stride,
            "INPUT_SHARED": task.i_in1 in self.shared_inputs,
            "DEPTH": depth if self.copies(task, plain=self.plain) else 1,
            **tables,
            "OUTPUTS": len(outputs),
            "OUTPUT": Table("Output", outputs),
            "NUM_WEIGHTS": len(weighted),
            "MAX_WEIGHTS": max(1, len(weighted)),
            "WEIGHT_COLUMN": Table("int", [path.weight_offset + path.v for path in weighted]),
        }

    def zeroed(self) -> tuple[str, ...]:
        """Return results that must start at zero: blocks add to them, or tasks leave parts out."""
        problem, spec = self.problem, self.spec
        written = {path.i_out for path in self.lowered.paths}
        all_out = {i for i, block in enumerate(problem.irreps_out) if block.mul}
        all_in = {i for i, block in enumerate(problem.irreps_in1) if block.mul}
        adds = spec.conv and not self.plan.deterministic
        found = {
            "out": written != all_out or bool(self.shared_outputs),
            "dx": adds or {t.i_in1 for t in self.tasks} != all_in or bool(self.shared_inputs),
            "dy": len(self.sets) != 1,
            "dw": problem.shared_weights,
        }
        return tuple(name for name, zero in found.items() if zero and name in spec.results)


def emit_cuda(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernels of one pass; equal arguments give equal text.

    Raises
    ------
    UnsupportedProblemError
        A CUDA block cannot hold a block of channels or of edge attributes.
    """
    if any(path.mode == "uvw" for path in problem.paths):
        return emit_uvw(problem, plan, spec)
    found = _Pass(lower(problem), plan, spec)
    quad = 16 // found.itemsize
    matrices = [PathMatrices.of(found.lowered, kernel, kernel.warps, quad) for kernel in found.sets]
    batches = [found.batch(k, t.stride) for k, t in zip(found.sets, matrices, strict=True)]
    run = 1
    if not spec.conv:  # all kernels share one length of runs
        run = min(batches, default=1)
    programs, entries = [], []
    for number, (kernel, rows, batch) in enumerate(zip(found.sets, matrices, batches, strict=True)):
        if kernel.warps > WARP:
            raise UnsupportedProblemError(
                f"problem {problem.key()} has a block of {kernel.tasks[0].in1.mul} channels, "
                "more than one CUDA block can take: split it"
            )
        threads, depth = kernel.warps * WARP, found.depth(kernel, plain=found.plain)
        ring = depth * found.longest(kernel, plain=found.plain) if depth > 1 else 0
        shared = max(16, -(-found.batch_bytes(kernel, rows.stride, batch) // 16) * 16)
        early = plan.overlaps and number > 0
        values = {
            "BLOCK_WARPS": kernel.warps,
            "BATCH": batch if spec.conv else run,
            **rows.tables(),
            "RING_START": shared // found.itemsize,
            "RING_ITEMS": ring,
            "LETS_NEXT_START": plan.overlaps and number < len(found.sets) - 1,
            "ENDS_AFTER_PREVIOUS": early,
        }
        comment = f"{kernel.warps} warps"
        texts = [constants(f"Kernel{number} : Pass", comment, values)]
        names = [f"Kernel{number}"]
        for i, (task, first_warp) in enumerate(kernel.starts()):
            names.append(f"Task{number}_{i}")
            comment = f"{task.in1} by {task.chunks} warps, {len(task.paths)} paths"
            values = found.task(task, first_warp, depth, rows)
            texts.append(constants(f"{names[-1]} : {names[0]}", comment, values))
        name = f"{'conv' if spec.conv else 'tensor_product'}_{spec.kind}_{number}"
        head = kernel_head(name, threads, resident_blocks(threads, found.tile.registers))
        texts.append(f"{head}\n    run_conv<{', '.join(names)}>(p);\n}}")
        programs.append("\n\n".join(texts))
        shared += kernel.warps * ring * found.itemsize
        entries.append(CudaEntry(name, threads, shared, 1, early))
    copies = row_kernels(problem, plan)

    file = "conv/edge_weights.cuh"

    def text(kernel: str, *parts: str) -> str:
        return "\n\n".join([*cuda_head(problem, kernel, plan, file), *parts]) + "\n"

    pass_constants = constants("Pass", str(spec), found.constants())
    return CudaKernel(
        source=text(str(spec), copies, pass_constants, *programs),
        programs=tuple(text(str(spec), pass_constants, program) for program in programs),
        copies=text("node rows", copies),
        entries=tuple(entries),
        arguments=argument_names(kernel_file(file), "Arguments"),
        packed_in1=packed_row(problem.irreps_in1, plan.padded)[0],
        packs=spec.conv and not found.plain,
        run=run,
        zeroed=found.zeroed(),
    )
