"""CUDA C++ source of the engine's fused convolution: weights from a table of edge lengths.

The kernels are templates in csrc/kernels/conv/table_forward.cuh and table_backward.cuh. This module
distributes the work over warps, and prints the tables that instantiate the templates.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..._version import __version__
from ...errors import UnsupportedProblemError
from ...plan.device import WARP
from ...plan.host import ITEMSIZE
from ...plan.table_conv import DOUBLE_PLAN, TABLE_SINGLES, TableConvPlan, TableConvTile
from ...problem import ConvProblem, Irreps
from ..common.emit import CudaEntry, CudaKernel, kernel_head, scalar_type
from ..common.lowering import LoweredProblem, lower
from ..common.tables import Table, argument_names, constants, kernel_file
from .table_blocks import TableBlock, estimated_resident, kernel_sets, streams_of
from .warp_tasks import WarpTask

# Bytes of shared memory that a block can have on every supported device.
LEAST_SHARED = 98 * 1024

__all__ = ["LEAST_SHARED", "emit_table_conv"]


def _harmonic_factors(l_max: int, normalization: str) -> list[float]:
    """Return the factors of associated polynomials in csrc/engine/edges/harmonics.hpp."""
    found = [0.0] * (l_max + 1) ** 2
    for l in range(l_max + 1):
        whole = {
            "component": math.sqrt(2 * l + 1),
            "norm": 1.0,
            "integral": math.sqrt((2 * l + 1) / (4 * math.pi)),
        }[normalization]
        for m in range(l + 1):
            ratio = math.factorial(l - m) / math.factorial(l + m)
            factor = whole * math.sqrt(2 * ratio if m else ratio)
            found[l * l + l + m] = found[l * l + l - m] = factor
    return found


def _check(problem: ConvProblem, lowered: LoweredProblem, tile: TableConvTile) -> None:
    """Raise UnsupportedProblemError if the kernels cannot compute a problem."""
    harmonics = Irreps.from_pairs((1, b.ir.l, b.ir.p) for b in problem.irreps_in2)
    if harmonics != problem.irreps_in2 or any(
        block.ir.l != l for l, block in enumerate(problem.irreps_in2)
    ):
        raise UnsupportedProblemError(
            f"edge attributes are {problem.irreps_in2}, expected one harmonic per degree from 0 on"
        )
    if any(block.mul % 4 for block in (*problem.irreps_in1, *problem.irreps_out)):
        raise UnsupportedProblemError(
            f"rows are {problem.irreps_in1} and {problem.irreps_out}, expected multiplicities that "
            "are multiples of 4"
        )
    if any(p.mode != "uvu" or not p.has_weight or p.mul2 != 1 for p in lowered.paths):
        raise UnsupportedProblemError(f"problem {problem.key()} has paths that are not uvu")
    least = 3 + TABLE_SINGLES[problem.dtype] // 2
    if tile.degree < least:
        raise UnsupportedProblemError(
            f"tables have polynomials of degree {tile.degree}, expected at least {least} in "
            f"{problem.dtype}"
        )


def _check_block(problem: ConvProblem, block: TableBlock) -> None:
    if block.kernel.warps > WARP:
        raise UnsupportedProblemError(
            f"problem {problem.key()} has a block of {block.kernel.tasks[0].in1.mul} channels, "
            "more than one CUDA block can take"
        )
    if block.shared_bytes > block.most_shared:
        raise UnsupportedProblemError(
            f"problem {problem.key()} needs {block.shared_bytes} bytes of shared memory, more "
            f"than the {block.most_shared} that a device has"
        )


def _problem_text(
    problem: ConvProblem, tile: TableConvTile, normalization: str, **flags: bool
) -> str:
    """Print the definitions that precede the kernels; `flags` are further constants."""
    l_max = len(problem.irreps_in2) - 1
    members: dict[str, int | Table] = {
        "BATCH": tile.batch,
        "DEGREE": tile.degree,
        "IN_WIDTH": problem.irreps_in1.dim,
        "OUT_WIDTH": problem.irreps_out.dim,
        "WEIGHTS": problem.weight_numel,
        "HARMONIC_FACTORS": Table("T", _harmonic_factors(l_max, normalization)),
        **flags,
    }
    return "\n".join(
        [
            f"typedef {scalar_type(problem.dtype)} T;",
            f"#define L_MAX {l_max}",
            constants("Problem", str(problem.irreps_in1), members),
        ]
    )


def _kernel_members(block: TableBlock, stream: int) -> dict[str, int | Table]:
    """Return the constants of a kernel."""
    shared: dict[str, int | Table] = {
        "BLOCK_WARPS": block.warps,
        "SHARED_BYTES": block.shared_bytes,
    }
    of_pass: dict[str, int | Table] = {
        "MAX_WARP_GROUPS": block.max_warp_groups,
        "EDGES_AT_ONCE": block.edges_at_once,
    }
    if not block.forward:
        of_pass = {
            "WARPS": block.kernel.warps,
            "SLICES": block.slices,
            "STREAM": stream,
            "HELD_ITEMS": block.held_items,
        }
    return {**shared, **of_pass, "SUM_ITEMS": block.sum_items, **block.matrices.tables()}


def _task_members(
    block: TableBlock, task: WarpTask, first_warp: int, written: set[int]
) -> dict[str, int | Table]:
    """Return the constants of a warp task. Earlier kernels have written the blocks `written`."""
    problem = block.lowered.problem
    first_output: dict[int, int] = {}  # block: index of its first component in `outputs`
    outputs: list[tuple[int, bool]] = []
    for i_out, out in task.outputs.items():
        first_output[i_out] = len(outputs)
        is_first = block.forward and i_out not in written
        outputs += [
            (problem.irreps_out[i_out].offset + c * out.mul, is_first) for c in range(out.ir.dim)
        ]
    paths: list[tuple[int, ...]] = []
    entries: list[tuple[int, ...]] = []
    for path in task.paths:
        coupling, first_entry = path.coupling, len(entries)
        entries += [(e.a, e.c, e.nonzero, e.sign) for e in coupling.entries]
        harmonics = [b for form in block.lowered.forms(path) for b, _ in form.terms]
        paths.append(
            (
                path.weight_offset,
                first_output[path.i_out],
                path.out.ir.dim,
                block.matrices.starts.get(path.first_nonzero, 0),
                coupling.num_nonzeros,
                first_entry,
                len(entries),
                math.isqrt(max(harmonics, default=0)),
            )
        )
    return {
        "FIRST_WARP": first_warp,
        "NUM_WARPS": task.chunks,
        "CHANNELS": task.channels,
        "MUL": task.in1.mul,
        "DIM": task.in1.ir.dim,
        "IN_OFFSET": task.in1.offset,
        **({} if block.forward else {"IS_FIRST_OF_INPUT": task.i_in1 not in written}),
        "NUM_PATHS": len(paths),
        "NUM_OUTPUTS": len(outputs),
        "PATHS": Table("Path", paths),
        "ENTRIES": Table("Entry", entries),
        "OUTPUTS": Table("Output", outputs),
    }


def _kernel_text(block: TableBlock, number: int, name: str, stream: int, written: set[int]) -> str:
    """Print a kernel: its tables, and the instantiation of the template."""
    struct, texts, tasks = f"Kernel{number}", [], []
    members = _kernel_members(block, stream)
    texts.append(constants(struct, f"{block.warps} warps", members))
    for i, (task, first_warp) in enumerate(block.kernel.starts()):
        tasks.append(f"{struct}Task{i}")
        comment = f"{task.in1}, {len(task.paths)} paths"
        texts.append(constants(tasks[-1], comment, _task_members(block, task, first_warp, written)))
    kind = "forward" if block.forward else "backward"
    head = kernel_head(name, block.max_warp_groups * block.threads, block.resident)
    texts.append(f"{head}\n    table_{kind}<{', '.join([struct, *tasks])}>(p);\n}}")
    return "\n\n".join(texts)


def emit_table_conv(
    problem: ConvProblem,
    kind: str,
    *,
    wants_x: bool,
    normalization: str,
    plan: TableConvPlan | None = None,
    most_shared: int = LEAST_SHARED,
) -> CudaKernel:
    """Choose the kernels of one pass and print their program.

    Parameters
    ----------
    problem : ConvProblem
        Its rows are padded, in layout ``ir_mul``. All paths are ``uvu`` with weights, and the
        second input is one harmonic of each degree, beginning with 0.
    kind : {"forward", "backward"}
        The forward pass computes the rows of the receivers; the backward pass, gradients of the
        edges' vectors and of the features.
    wants_x : bool
        The backward pass writes gradients of the features, of a group's senders and of its
        receivers. The forward pass ignores this.
    normalization : {"component", "norm", "integral"}
        Normalization of the harmonics.
    plan : TableConvPlan, optional
        Tiles of both passes. Default: :class:`TableConvPlan` in single precision, `DOUBLE_PLAN` in
        double precision.
    most_shared : int, optional
        Bytes of shared memory that a block may have. If the receivers' gradients and features do
        not fit, the backward pass reads them from device memory.

    Returns
    -------
    CudaKernel
        Kernels, the one with the most work first. Each computes some input blocks, or some paths
        of one. All have the number of thread blocks that `n_rows` needs. `zeroed` names the buffers
        that must hold zeros before.

    Raises
    ------
    UnsupportedProblemError
        A multiplicity is not a multiple of 4, a path is not ``uvu`` or has no weights, a block has
        more channels than a block of threads can take, or the attributes are not harmonics of
        degrees 0, 1, 2 and so on.
    """
    plan = plan or (DOUBLE_PLAN if problem.dtype == "float64" else TableConvPlan())
    lowered = lower(problem)
    forward = kind == "forward"
    tile = plan.forward if forward else plan.backward
    _check(problem, lowered, tile)
    words = ITEMSIZE[problem.dtype] // 4
    sets = kernel_sets(lowered, tile, words)

    def blocks(tile: TableConvTile) -> list[TableBlock]:
        return [TableBlock(one, lowered, tile, forward, wants_x, most_shared) for one in sets]

    if any(block.batch_bytes > tile.shared_bytes * block.warps for block in blocks(tile)):
        tile = replace(tile, batch=-(-tile.batch // 2))
    streams = streams_of(sets, forward)
    written: set[int] = set()  # blocks of the outputs, or of the features' gradients
    texts, entries = [], []
    for number, (block, stream) in enumerate(zip(blocks(tile), streams, strict=True)):
        _check_block(problem, block)
        name = f"conv_table_{kind}_{number}"
        texts.append(_kernel_text(block, number, name, stream, written))
        written |= {i for task in block.kernel.tasks for i in _written(task, forward)}
        entries.append(
            CudaEntry(
                name,
                block.threads,
                block.shared_bytes,
                1,
                stream=stream,
                max_warp_groups=block.max_warp_groups,
            )
        )
    results = problem.irreps_out if forward else problem.irreps_in1
    complete = written == {i for i, block in enumerate(results) if block.mul}
    flags = {} if forward else {"FEATURE_GRADIENTS": wants_x}
    before = _problem_text(problem, tile, normalization, **flags)
    file = kernel_file(f"conv/table_{kind}.cuh")
    title = f"// mdcg {__version__}, problem {problem.key()}, table {kind}\n// {plan}"
    return CudaKernel(
        source="\n\n".join([title, before, file, *texts]) + "\n",
        entries=tuple(entries),
        arguments=argument_names(file, "EdgeArguments", "Arguments"),
        packed_in1=problem.irreps_in1.dim,
        packs=False,
        run=1,
        zeroed=() if complete else ("out",) if forward else ("dx",) if wants_x else (),
        degree=tile.degree,
        singles=TABLE_SINGLES[problem.dtype],
        resident=1 if forward else estimated_resident(sets, words),
    )


def _written(task: WarpTask, forward: bool) -> set[int]:
    """Return the blocks of the outputs, or of the features' gradients, that a task writes."""
    return set(task.outputs) if forward else {task.i_in1}
