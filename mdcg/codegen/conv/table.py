"""CUDA C++ source of the engine's fused convolution: weights from a table of edge lengths.

A warp takes the channels of 32 lanes of a block of the features, with all their paths. In the
forward pass a block of threads takes a receiver; in small systems groups of its warps share the
receiver's edges. Edges come roughly by length, so that polynomials of the table stay in registers
for the next edges. In the backward pass a block takes a group of receivers, or a part of the
group's pairs: each edge together with its reverse, which has the same weights (table_pairs.py).
Harmonics, path matrices and weights of an edge exist in registers and shared memory only; the
backward pass ends in the gradient of the edge's vector and rows for senders and receivers.
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
from ..common.emit import (
    CudaEntry,
    CudaKernel,
    argument_struct,
    kernel_head,
    scalar_type,
    template,
)
from ..common.expression import literal
from ..common.lowering import LoweredProblem, lower
from ..common.spec import KernelSpec
from ..common.tables import kernel_file
from .table_blocks import (
    TableBlock,
    estimated_resident,
    kernel_sets,
    record_bytes,
    streams_of,
)
from .table_pairs import BackwardTaskWriter, part_stride
from .table_tasks import ForwardTaskWriter, NonzeroTable, share_groups, store_nonzeros

# What a block may have of shared memory on any device that kernels run on.
LEAST_SHARED = 98 * 1024

__all__ = ["LEAST_SHARED", "emit_table_conv", "table_conv_arguments"]


def table_conv_arguments(kind: str, wants_x: bool) -> tuple[str, ...]:
    """Return names of addresses and sizes in the order of the kernels' parameter.

    Parameters
    ----------
    kind : {"forward", "backward"}
        See :func:`emit_table_conv`.
    wants_x : bool
        See :func:`emit_table_conv`; it matters in the backward pass only.

    Returns
    -------
    tuple of str
        Numbers: ``n_rows`` blocks of threads; ``n_types``; ``n_flip`` (1: vectors are turned
        round). Backward, ``n_parts`` blocks share the pairs of a group. By receiver:
        ``row_ptr`` (receivers + 1) of edges, ``num_active`` and ``types``. By edge: ``active``,
        ``sender`` (row of ``x``), ``sender_type``; ``unit`` (3), no unit; ``length`` in Å, float64.
        Of the radial networks: ``places`` and ``table``. Rows: ``x`` by sender; ``out`` by
        receiver.
        Backward, blocks take groups of ``n_group`` receivers from ``n_first`` on, of ``n_local`` in
        all; ``num_active`` is by group, ``types`` and ``g``, the gradient of ``out``, by node. By
        edge: its ends ``receiver`` and ``node``. ``one_way`` (1) is not 0 where edges have no
        reverse. Results: ``de`` (3) by edge, in 1/Å times the unit of ``g``, with rows of its own
        for each lane (:class:`CudaEntry`) ``n_de`` items apart; ``dx`` with a row for each sender
        of a group, where pair ``active[i]`` has number ``place[i]``; ``own`` by receiver and part.
    """
    names = [
        "n_rows",
        *(() if kind == "forward" else ("n_parts",)),
        "n_types",
        "n_flip",
        "row_ptr",
        "active",
        "num_active",
        "sender",
        "sender_type",
    ]
    names += ["types", "unit", "length", "places", "table", "x"]
    if kind == "forward":
        return (*names, "out")
    names += ["n_group", "n_first", "n_local", "receiver", "node", "one_way", "g", "de", "n_de"]
    return (*names, *(("place", "dx", "own") if wants_x else ()))


def _factors(l_max: int, normalization: str) -> list[float]:
    """Return what csrc/engine/edges/harmonics.hpp multiplies associated polynomials with."""
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


def _make_function(prefix: str, lowered: LoweredProblem, block: TableBlock) -> str:
    """Print what fills the shared memory of a batch: lane = edge; the warps share the matrices."""
    kernel, table, tile = block.kernel, block.table, block.tile
    quad = 16 // block.itemsize
    work = share_groups(lowered, kernel, block.warps)
    lines = [
        f"MDCG_INLINE void {prefix}_make(const Arguments& p, const PrefetchedEdge& a, Long row, "
        "Record* records, T* m, bool there, int lane, int warp, bool record) {",
        f"    there = there && lane < {tile.batch};",
        "    const Record own = there && record ? record_of(p, a, row) : Record{};",
        f"    if (record) write_records<{block.edges_at_once}>(records, own, there, lane);",
        "    if (!there) return;",
        f"    T y[{block.attributes}];",
        "    constexpr T factors[] = NORM;",
        "    scaled_harmonics(factors, a.u, T(1), y);",
        f"    m += lane * {table.stride};",
    ]
    for warp, groups in enumerate(work):
        if not groups:
            continue
        lines.append(f"    if (warp == {warp}) {{")
        for i in sorted(groups):
            lines += store_nonzeros(lowered.groups[i], table, quad, "y[{}]")
        lines.append("    }")
    return "\n".join([*lines, "}"])


def _entry(name: str, prefix: str, block: TableBlock) -> str:
    kernel, warps, batch = block.kernel, block.kernel.warps, block.tile.batch
    lines = [
        kernel_head(name, block.max_warp_groups * block.threads, block.resident),
        "    extern __shared__ Quad shared_memory[];",
        f"    const int lane = threadIdx.x % {WARP};",
        "    // equal in all lanes, as the compiler knows after the exchange",
        f"    const int warp_of_block = __shfl_sync(0xffffffffu, int(threadIdx.x) / {WARP}, 0);",
        f"    const int part = warp_of_block % {warps};",
    ]
    if block.forward:
        number, count, step = "lane", "count", batch
        arguments = "row, begin, count"
        lines += [
            f"    const int warp_groups = int(blockDim.x) / {block.threads};",
            f"    const int warp_group = warp_of_block / {warps}, warp = part;",
            f"    Quad* const memory = shared_memory + warp_group * {block.shared_bytes // 16};",
            "    const Long row = blockIdx.x;",
            "    const int active = p.num_active[row];",
            "    const int skipped = active * warp_group / warp_groups;",
            "    const int begin = p.row_ptr[row] + skipped;",
            "    const int count = active * (warp_group + 1) / warp_groups - skipped;",
        ]
    else:
        lines += [
            "    const int warp = warp_of_block;",
            "    Quad* const memory = shared_memory;",
            "    const Long row = blockIdx.x / unsigned(PARTS);",
        ]
    lines += [
        "    Record* const records = (Record*)memory;",
        f"    T* const matrices = (T*)memory + {block.record_items};",
        "    PrefetchedEdge ahead;",
    ]
    if not block.forward:
        step = batch // block.batch_shares
        number, count = f"lane % {step}", "mine.count"
        held = block.batch_bytes // block.itemsize
        arguments = (
            f"parts, held + part * {block.held_items}, "
            f"held + {warps * block.held_items} + warp * {block.sum_items}, row, mine"
        )
        lines += [
            f"    T* const parts = matrices + {block.nonzero_items};",
            f"    T* const held = (T*)shared_memory + {held};",
            f"    const EdgeSlice mine = share_of<{block.batch_shares}>(p, row, "
            "blockIdx.x % unsigned(PARTS), PARTS, lane);",
            "    const int begin = mine.begin;",
        ]
    lines += [
        f"    fetch(p, ahead, begin, {number}, {count}, {step}, lane, warp == 0);",
        f"    {prefix}_make(p, ahead, row, records, matrices, {number} < {count}, lane, warp, "
        "warp == 0);",
        "    __syncthreads();",
    ]
    for i, (task, start) in enumerate(kernel.starts()):
        last = start + task.chunks
        keyword = "if" if start == 0 else "else if"
        chunk = f"part - {start}" if task.chunks > 1 else "0"
        condition = f"{keyword} (part < {last}) " if last < warps else ("else " if start else "")
        lines.append(
            f"    {condition}{prefix}_task{i}(p, ahead, records, matrices, {arguments}, lane, "
            f"warp, part, {chunk});"
        )
    return "\n".join([*lines, "}"])


def emit_table_conv(
    problem: ConvProblem,
    kind: str,
    *,
    wants_x: bool,
    normalization: str,
    plan: TableConvPlan | None = None,
    most_shared: int = LEAST_SHARED,
) -> CudaKernel:
    """Print the kernels of one pass.

    Parameters
    ----------
    problem : ConvProblem
        Of padded rows, ``ir_mul``; all paths ``uvu`` with weights, one harmonic of each degree
        from 0 on.
    kind : {"forward", "backward"}
        Rows of the receivers, or gradients of the edges' vectors and of the features.
    wants_x : bool
        The backward pass writes gradients of the features: rows of the senders of a group, and of
        receivers. The forward pass ignores this.
    normalization : {"component", "norm", "integral"}
        Of the harmonics.
    plan : TableConvPlan, optional
        Tiles of both passes. Default: :class:`TableConvPlan` in single precision, `DOUBLE_PLAN` in
        double precision.
    most_shared : int, optional
        Bytes of shared memory that a block may have. Where they are too few for what the receivers
        of a group have, the backward pass reads that from device memory.

    Returns
    -------
    CudaKernel
        Kernels for sets of input blocks or of paths of one, those with the most work first. Each
        has the blocks of threads of `n_rows` and the parameter :func:`table_conv_arguments`;
        buffers that must be zeros before are named.

    Raises
    ------
    UnsupportedProblemError
        A multiplicity is not a multiple of 4, a path is not ``uvu`` or has no weights, a block has
        more channels than a block of threads can take, or the attributes are not harmonics of
        degrees 0, 1, 2 and so on.
    """
    plan = plan or (DOUBLE_PLAN if problem.dtype == "float64" else TableConvPlan())
    lowered = lower(problem)
    l_max = len(problem.irreps_in2) - 1
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
    forward = kind == "forward"
    tile = plan.forward if forward else plan.backward
    least = 3 + TABLE_SINGLES[problem.dtype] // 2
    if tile.degree < least:
        raise UnsupportedProblemError(
            f"tables have polynomials of degree {tile.degree}, expected at least {least} in "
            f"{problem.dtype}"
        )
    itemsize = ITEMSIZE[problem.dtype]
    spec = KernelSpec(kind, True, () if forward else ("x", "y", "w") if wants_x else ("y", "w"))
    words = itemsize // 4
    sets = kernel_sets(lowered, tile, words)
    attributes = (l_max + 1) ** 2
    arguments = table_conv_arguments(kind, wants_x)
    tables = [NonzeroTable.of(lowered, kernel.groups, 16 // itemsize) for kernel in sets]

    def blocks(tile: TableConvTile) -> list[TableBlock]:
        return [
            TableBlock(kernel, table, tile, forward, wants_x, attributes, itemsize, most_shared)
            for kernel, table in zip(sets, tables, strict=True)
        ]

    if any(block.batch_bytes > tile.shared_bytes * block.warps for block in blocks(tile)):
        tile = replace(tile, batch=-(-tile.batch // 2))
    streams = streams_of(sets, forward)
    written_out: set[int] = set()
    written_in: set[int] = set()
    texts, entries = [], []
    for number, block in enumerate(blocks(tile)):
        kernel, table = block.kernel, block.table
        if kernel.warps > WARP:
            raise UnsupportedProblemError(
                f"problem {problem.key()} has a block of {kernel.tasks[0].in1.mul} channels, "
                "more than one CUDA block can take"
            )
        if block.shared_bytes > most_shared:
            raise UnsupportedProblemError(
                f"problem {problem.key()} needs {block.shared_bytes} bytes of shared memory, more "
                f"than the {most_shared} that a device has"
            )
        prefix = f"set{number}"
        texts.append(_make_function(prefix, lowered, block))
        for i, task in enumerate(kernel.tasks):
            given = (lowered, spec, task, table)
            common = {"batch": tile.batch, "warps": kernel.warps, "shares": block.batch_shares}
            writer: ForwardTaskWriter | BackwardTaskWriter
            if forward:
                writer = ForwardTaskWriter(
                    *given,
                    **common,
                    stored_outputs=frozenset(task.outputs) - written_out,
                    edges_at_once=block.edges_at_once,
                    sum_items=block.sum_items if block.max_warp_groups > 1 else 0,
                    group_items=block.shared_bytes // itemsize,
                )
            else:
                writer = BackwardTaskWriter(
                    *given,
                    **common,
                    stream=streams[number],
                    stores_inputs=task.i_in1 not in written_in,
                    share_sums=kernel.warps * block.sum_items,
                    held=block.held_items > 0,
                )
            texts.append(writer.function(f"{prefix}_task{i}", prefix))
        for task in kernel.tasks:
            written_out |= set(task.outputs)
            written_in.add(task.i_in1)
        name = f"conv_table_{kind}_{number}"
        texts.append(_entry(name, prefix, block))
        entries.append(
            CudaEntry(
                name,
                block.threads,
                block.shared_bytes,
                1,
                stream=streams[number],
                max_warp_groups=block.max_warp_groups,
            )
        )
    zeroed = []
    if forward and written_out != {i for i, b in enumerate(problem.irreps_out) if b.mul}:
        zeroed.append("out")
    if (
        not forward
        and wants_x
        and written_in != {i for i, b in enumerate(problem.irreps_in1) if b.mul}
    ):
        zeroed.append("dx")
    norm = ", ".join(literal(value) for value in _factors(l_max, normalization))
    header = [
        f"// mdcg {__version__}, problem {problem.key()}, table {kind}",
        f"// {plan}",
        f"typedef {scalar_type(problem.dtype)} T;",
        f"#define L_MAX {l_max}\n#define NORM {{{norm}}}\n#define DEGREE {tile.degree}\n"
        f"#define BATCH {tile.batch}\n#define BACKWARD {int(not forward)}\n"
        f"#define PARTS p.n_parts\n#define PART_STRIDE {part_stride(attributes)}\n"
        f"#define PLACE(pair) {'p.place[pair]' if 'place' in arguments else '0'}",
        "#define STARTS_ROW(pair) "
        + ("(p.place[pair] != p.place[pair - 1])" if "place" in arguments else "true"),
        kernel_file("vectors.cuh" if forward else "warp_sums.cuh"),
        template("common/table_entry.hpp") + template("common/table_column.cuh"),
        argument_struct(arguments),
        template("common/spherical_harmonics.cuh"),
        template("conv/table_prelude.cuh"),
        f"static_assert(sizeof(Record) == {record_bytes(forward, itemsize)});",
    ]
    return CudaKernel(
        source="\n\n".join([*header, *texts]) + "\n",
        entries=tuple(entries),
        arguments=arguments,
        packed_in1=problem.irreps_in1.dim,
        packs=False,
        run=1,
        zeroed=tuple(zeroed),
        degree=tile.degree,
        singles=TABLE_SINGLES[problem.dtype],
        resident=1 if forward else estimated_resident(sets, words),
    )
