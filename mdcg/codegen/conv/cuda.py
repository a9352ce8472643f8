"""CUDA C++ source of one pass: kernels whose blocks take a receiver each, or a run of rows.

A block's warps have tasks (:mod:`mdcg.codegen.conv.warp_tasks`). All of them walk the edges of the
block; the path matrices of a batch of edges are evaluated once, by all warps, into shared memory.
Nothing is included, so that NVRTC needs no headers.
"""

from __future__ import annotations

from ...errors import UnsupportedProblemError
from ...plan import CudaPlan
from ...plan.device import WARP, CudaTile
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import (
    CudaEntry,
    CudaKernel,
    argument_struct,
    cuda_head,
    kernel_head,
    packed_row,
    resident_blocks,
)
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredProblem, NonzeroGroup, lower
from ..common.spec import KernelSpec, cuda_arguments
from .cuda_paths import NonzeroTable, TaskWriter
from .cuda_ring import Ring, place_ring
from .cuda_rows import row_functions
from .uvw import emit_uvw
from .warp_tasks import TaskSet, task_sets

__all__ = ["emit_cuda", "share_groups", "store_nonzeros"]

# Shared memory a block may take, so that several fit on a multiprocessor of any device.
_SHARED_BYTES = 48 * 1024


def share_groups(lowered: LoweredProblem, kernel: TaskSet, warps: int) -> list[list[int]]:
    """Return positions of the nonzero groups that each warp evaluates, of about equal work."""
    work: list[list[int]] = [[] for _ in range(warps)]
    loads = [0] * warps
    cost = {i: sum(len(f.terms) + 1 for f in lowered.groups[i].forms) for i in kernel.groups}
    for i in sorted(kernel.groups, key=lambda i: (-cost[i], i)):
        least = loads.index(min(loads))
        work[least].append(i)
        loads[least] += cost[i]
    return work


def store_nonzeros(
    group: NonzeroGroup, table: NonzeroTable, quad: int, attribute: str
) -> list[str]:
    """Print the nonzeros of a group into row ``m``; ``attribute`` is the format of a name of y."""
    statements = [
        Statement(f"m{n}", Sum.of((value, (attribute.format(b),)) for b, value in form.terms))
        for n, form in enumerate(group.forms)
    ]
    printed = print_statements(statements, declare="const T")
    lines = ["        {", *(f"            {line}" for line in printed)]
    for n in range(0, len(group.forms), quad):
        values = ", ".join(f"m{j}" if j < len(group.forms) else "T(0)" for j in range(n, n + quad))
        start = table.starts[group.first] + n
        lines.append(f"            *(Quad*)(m + {start}) = {{{{{values}}}}};")
    return [*lines, "        }"]


def _nonzero_function(
    prefix: str, lowered: LoweredProblem, kernel: TaskSet, table: NonzeroTable, conv: bool
) -> str:
    """Evaluate all nonzeros of a batch, lane = edge; the warps share the groups."""
    quad = 16 // ITEMSIZE[lowered.problem.dtype]
    work = share_groups(lowered, kernel, kernel.warps)
    edge = "p.order[first + lane]" if conv else "(first + lane)"
    lines = [
        f"MDCG_INLINE void {prefix}_nonzeros(const Arguments& p, const T* __restrict__ rows, T* m, "
        "int first, int count, int lane, int warp) {",
        "    if (lane >= count) return;",
        f"    const T* const y = rows + Long({edge}) * {lowered.problem.irreps_in2.dim};",
        f"    m += lane * {table.stride};",
    ]
    for warp, groups in enumerate(work):
        if not groups:
            continue
        lines.append(f"    if (warp == {warp}) {{")
        used = sorted(
            {b for i in groups for form in lowered.groups[i].forms for b, _ in form.terms}
        )
        lines += [f"        const T y{b} = __ldg(y + {b});" for b in used]
        for i in sorted(groups):
            lines += store_nonzeros(lowered.groups[i], table, quad, "y{}")
        lines.append("    }")
    return "\n".join([*lines, "}"])


def _flush_function(
    prefix: str, problem: ConvProblem, kernel: TaskSet, batch: int, conv: bool, adds: bool
) -> str:
    """Sum the warps' gradients of a batch's edge attributes in a fixed order."""
    dim = problem.irreps_in2.dim
    edge = "p.order[first + k]" if conv else "(first + k)"
    place = f"p.dy + Long({edge}) * {dim} + b"
    threads = kernel.warps * WARP
    return "\n".join(
        [
            f"MDCG_INLINE void {prefix}_flush(const Arguments& p, const T* part, int first, "
            "int count, int lane, int warp) {",
            f"    for (int t = warp * {WARP} + lane; t < count * {dim}; t += {threads}) {{",
            f"        const int k = t / {dim}, b = t % {dim};",
            "        T sum = 0;",
            "#pragma unroll",
            f"        for (int w = 0; w < {kernel.warps}; ++w) "
            f"sum += part[(w * {batch} + k) * {dim} + b];",
            f"        add({place}, sum);" if adds else f"        *({place}) = sum;",
            "    }",
            "}",
        ]
    )


def _batch(
    tile: CudaTile, table: NonzeroTable, kernel: TaskSet, problem: ConvProblem, spec: KernelSpec
) -> tuple[int, int]:
    """Return edges per batch and bytes of shared memory."""
    per_edge = table.stride * (4 if spec.has("y") else 2)
    if spec.wanted("y"):
        per_edge += 2 * kernel.warps * problem.irreps_in2.dim
    per_edge *= ITEMSIZE[problem.dtype]
    batch = tile.batch
    while batch > 1 and batch * per_edge > _SHARED_BYTES:
        batch //= 2
    return batch, max(16, -(-batch * per_edge // 16) * 16)


def _body(
    prefix: str,
    kernel: TaskSet,
    spec: KernelSpec,
    batch: int,
    problem: ConvProblem,
    table: NonzeroTable,
) -> list[str]:
    """Return the lines of a kernel: where its block starts, and what its warps do."""
    threads = kernel.warps * WARP
    lines = [
        "    extern __shared__ Quad shared_memory[];",
        f"    const int lane = threadIdx.x % {WARP}, warp = threadIdx.x / {WARP};",
        "    const Long row = blockIdx.x;",
        "    T* const shared = (T*)shared_memory;",
    ]
    if spec.conv:
        lines.append("    const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];")
    else:
        lines.append(f"    const int begin = int(row * {batch});")
        lines.append(f"    const int end = int(min(p.n_rows, Long(begin) + {batch}));")
    if spec.wanted("y"):
        # attributes that a task never touches stay zero in its part
        start = batch * table.stride * (4 if spec.has("y") else 2)
        size = 2 * kernel.warps * batch * problem.irreps_in2.dim
        lines.append(
            f"    for (int t = warp * {WARP} + lane; t < {size}; t += {threads}) "
            f"shared[{start} + t] = 0;"
        )
    for i, (task, first) in enumerate(kernel.starts()):
        keyword = "if" if i == 0 else "else if"
        lines.append(
            f"    {keyword} (warp < {first + task.chunks}) "
            f"{prefix}_task{i}(p, shared, row, begin, end, lane, warp, warp - {first});"
        )
    return lines


def _zeroed(
    lowered: LoweredProblem, sets: tuple[TaskSet, ...], spec: KernelSpec, plan: CudaPlan
) -> list[str]:
    """Results that some block adds to, or that some task leaves out."""
    problem = lowered.problem
    tasks = [task for kernel in sets for task in kernel.tasks]
    written = {path.i_out for path in lowered.paths}
    all_out = {i for i, block in enumerate(problem.irreps_out) if block.mul}
    zeroed = []
    if written != all_out or len({(i, r) for r in tasks for i in r.outputs}) > len(written):
        zeroed.append("out")
    used = [task.i_in1 for task in tasks]
    all_in = {i for i, block in enumerate(problem.irreps_in1) if block.mul}
    adds = spec.conv and not plan.deterministic
    if adds or set(used) != all_in or len(used) > len(set(used)):
        zeroed.append("dx")
    if len(sets) != 1:
        zeroed.append("dy")
    if problem.shared_weights:
        zeroed.append("dw")
    names = cuda_arguments(spec, plan.deterministic)
    return [name for name in zeroed if name in names]


def emit_cuda(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernels of one pass; equal arguments give equal text.

    Raises
    ------
    UnsupportedProblemError
        A CUDA block cannot hold a block of channels or of edge attributes.
    """
    if any(path.mode == "uvw" for path in problem.paths):
        return emit_uvw(problem, plan, spec)
    lowered = lower(problem)
    summing = spec.kind == "forward" or spec.wants == ("g",)
    tile = plan.forward if summing else getattr(plan, spec.kind)
    sets = task_sets(lowered, tile, no_shared_blocks=plan.deterministic)
    uses = [(i, task) for kernel in sets for task in kernel.tasks for i in task.outputs]
    shared_outputs = {i for i, _ in uses if sum(j == i for j, _ in uses) > 1}
    inputs = [task.i_in1 for kernel in sets for task in kernel.tasks]
    shared_inputs = {i for i in inputs if inputs.count(i) > 1}
    arguments = cuda_arguments(spec, plan.deterministic)
    plain = all(
        Ring.of(task, problem, plan, spec, depth=tile.depth, plain=True)
        for kernel in sets
        for task in kernel.tasks
    )
    quad = 16 // ITEMSIZE[problem.dtype]
    programs, entries = [], []
    run = 1
    tables = [NonzeroTable.of(lowered, kernel.groups, quad) for kernel in sets]
    batches = [
        _batch(tile, table, kernel, problem, spec)
        for kernel, table in zip(sets, tables, strict=True)
    ]
    if not spec.conv:
        run = min((batch for batch, _ in batches), default=1)
        batches = [(run, shared) for _, shared in batches]
    for number, (kernel, table, (batch, shared)) in enumerate(
        zip(sets, tables, batches, strict=True)
    ):
        if kernel.warps > WARP:
            raise UnsupportedProblemError(
                f"problem {problem.key()} has a block of {kernel.tasks[0].in1.mul} channels, "
                "more than one CUDA block can take: split it"
            )
        prefix, threads = f"set{number}", kernel.warps * WARP
        ring = place_ring(
            kernel,
            problem,
            plan,
            spec,
            depth=tile.depth,
            plain=plain,
            start=shared // ITEMSIZE[problem.dtype],
        )
        shared += kernel.warps * ring.items * ITEMSIZE[problem.dtype]
        writer = TaskWriter(lowered, plan, spec, table, batch, shared_outputs, shared_inputs, ring)
        texts = [_nonzero_function(prefix, lowered, kernel, table, spec.conv)]
        if spec.wanted("y"):
            texts.append(_flush_function(prefix, problem, kernel, batch, spec.conv, len(sets) > 1))
        texts += [
            writer.function(f"{prefix}_task{i}", prefix, task, kernel)
            for i, task in enumerate(kernel.tasks)
        ]
        name = f"{'conv' if spec.conv else 'tensor_product'}_{spec.kind}_{number}"
        early = plan.overlaps and number > 0
        head = kernel_head(name, threads, resident_blocks(threads, tile.registers))
        first = ["    let_next_start();"] if plan.overlaps and number < len(sets) - 1 else []
        last = ["    end_after_previous();"] if early else []
        body = _body(prefix, kernel, spec, batch, problem, table)
        texts.append("\n".join([head, *first, *body, *last, "}"]))
        programs.append("\n\n".join(texts))
        entries.append(CudaEntry(name, threads, shared, 1, early))
    copies = row_functions(problem, plan)
    header = [*cuda_head(problem, str(spec), plan), argument_struct(arguments)]

    def text(*parts: str) -> str:
        return "\n\n".join(parts) + "\n"

    return CudaKernel(
        source=text(*header, copies, *programs),
        programs=tuple(text(*header, program) for program in programs),
        copies=text(*cuda_head(problem, "node rows", plan), copies),
        entries=tuple(entries),
        arguments=arguments,
        packed_in1=packed_row(problem.irreps_in1, plan.padded)[0],
        packs=spec.conv and not plain,
        run=run,
        zeroed=tuple(_zeroed(lowered, sets, spec, plan)),
    )
