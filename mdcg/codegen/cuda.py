"""CUDA C++ source of one pass: kernels whose blocks take a receiver each, or a run of rows.

A block's warps have roles (:mod:`mdcg.codegen.cuda_roles`). All of them walk the edges of the
block; the path matrices of a batch of edges are evaluated once, by all warps, into shared memory.
Nothing is included, so that NVRTC needs no headers.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

from .._version import __version__
from ..errors import UnsupportedProblemError
from ..plan import CudaPlan
from ..plan.device import WARP, CudaTile
from ..plan.host import ITEMSIZE
from ..problem import ConvProblem
from .cuda_paths import RoleWriter, SlotTable, literal
from .cuda_ring import Ring, place_ring
from .cuda_roles import RoleSet, role_sets
from .cuda_rows import row_functions
from .expression import Statement, Sum, print_statements
from .lowering import LoweredProblem, SlotGroup, lower
from .packing import packed_row
from .spec import KernelSpec

__all__ = ["CudaEntry", "CudaKernel", "argument_struct", "emit_uvu", "kernel_arguments"]

# Shared memory a block may take, so that several fit on a multiprocessor of any device.
_SHARED_BYTES = 48 * 1024

_REGISTER_FILE = 65536

# More would leave a thread too few registers.
_MAX_THREADS = 256


@dataclass(frozen=True)
class CudaEntry:
    """One kernel.

    Attributes
    ----------
    name : str
    threads : int
        Per block.
    shared_bytes : int
        Dynamic shared memory per block.
    rows : int
        Receivers, or runs of input rows, per block.
    early : bool
        It may start before the one launched before it has ended, and ends after it.
    """

    name: str
    threads: int
    shared_bytes: int
    rows: int
    early: bool = False


@dataclass(frozen=True)
class CudaKernel:
    """Generated text and what a launcher must know of it.

    Attributes
    ----------
    source : str
        CUDA C++17 without includes: all kernels in one program.
    entries : tuple of CudaEntry
        To be launched one after the other.
    arguments : tuple of str
        Names of the 64-bit values of the only parameter, in order: addresses, or sizes for names
        starting with ``n_``.
    packed_in1 : int
        Items of a packed row of node features.
    packs : bool
        Rows of node features are read in packed form.
    run : int
        1 for convolutions; else length of a run of input rows.
    zeroed : tuple of str
        Results that must be zeros before the launch, of "out", "dx", "dy", "dw".
    programs : tuple of str
        The same as programs of one entry each, to be compiled side by side; empty: ``source`` is
        not divided.
    copies : str
        Program that packs and unpacks node rows, the same for all passes; empty: in ``source``.
    """

    source: str
    entries: tuple[CudaEntry, ...]
    arguments: tuple[str, ...]
    packed_in1: int
    packs: bool
    run: int
    zeroed: tuple[str, ...]
    programs: tuple[str, ...] = ()
    copies: str = ""


_INDICES = ("order", "sender", "row_ptr", "place")


def kernel_arguments(spec: KernelSpec, plan: CudaPlan) -> tuple[str, ...]:
    """Return names of addresses and sizes in the order of the kernels' parameter."""
    names = list(_INDICES[:3]) if spec.conv else []
    if spec.conv and spec.wanted("x") and plan.deterministic:
        names.append("place")
    names += ["n_rows", "x", "y", "w"]
    if spec.kind != "forward":
        names.append("g")
    names += [{"x": "xa", "y": "yb", "w": "wc"}[name] for name in spec.given]
    if spec.kind == "forward":
        return (*names, "out")
    return (*names, *("out" if name == "g" else f"d{name}" for name in spec.wants))


def argument_struct(arguments: tuple[str, ...]) -> str:
    """Print the type of the kernels' parameter."""
    results = {"out", "dx", "dy", "dw"}
    lines = ["struct Arguments {"]
    for name in arguments:
        if name.startswith("n_"):
            lines.append(f"    Long {name};")
        elif name in _INDICES:
            lines.append(f"    const int* __restrict__ {name};")
        else:
            const = "" if name in results else "const "
            lines.append(f"    {const}T* __restrict__ {name};")
    return "\n".join([*lines, "};"])


def prelude(name: str) -> str:
    """Return a text of this folder that programs begin with."""
    text = files(__package__).joinpath(f"{name}.cuh").read_text()
    # what the engine's own programs begin with too is a string of C++
    return text.removeprefix('R"CUDA(\n').removesuffix(')CUDA"\n')


def share_groups(lowered: LoweredProblem, kernel: RoleSet) -> list[list[int]]:
    """Return positions of the slot groups that each warp evaluates, of about equal work."""
    work: list[list[int]] = [[] for _ in range(kernel.warps)]
    loads = [0] * kernel.warps
    cost = {i: sum(len(f.terms) + 1 for f in lowered.groups[i].forms) for i in kernel.groups}
    for i in sorted(kernel.groups, key=lambda i: (-cost[i], i)):
        least = loads.index(min(loads))
        work[least].append(i)
        loads[least] += cost[i]
    return work


def store_slots(group: SlotGroup, table: SlotTable, quad: int, attribute: str) -> list[str]:
    """Print the slots of a group into row ``m``; ``attribute`` is the format of a name of y."""
    statements = [
        Statement(f"m{n}", Sum.of((value, (attribute.format(b),)) for b, value in form.terms))
        for n, form in enumerate(group.forms)
    ]
    printed = print_statements(statements, literal=literal, declare="const T")
    lines = ["        {", *(f"            {line}" for line in printed)]
    for n in range(0, len(group.forms), quad):
        values = ", ".join(f"m{j}" if j < len(group.forms) else "T(0)" for j in range(n, n + quad))
        start = table.starts[group.first] + n
        lines.append(f"            *(Quad*)(m + {start}) = {{{{{values}}}}};")
    return [*lines, "        }"]


def _slot_function(
    prefix: str, lowered: LoweredProblem, kernel: RoleSet, table: SlotTable, conv: bool
) -> str:
    """Evaluate all slots of a batch, lane = edge; the warps share the groups."""
    quad = 16 // ITEMSIZE[lowered.problem.dtype]
    work = share_groups(lowered, kernel)
    edge = "p.order[first + lane]" if conv else "(first + lane)"
    lines = [
        f"MDCG_INLINE void {prefix}_slots(const Arguments& p, const T* __restrict__ rows, T* m, "
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
            lines += store_slots(lowered.groups[i], table, quad, "y{}")
        lines.append("    }")
    return "\n".join([*lines, "}"])


def _flush_function(
    prefix: str, problem: ConvProblem, kernel: RoleSet, batch: int, conv: bool, adds: bool
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
    tile: CudaTile, table: SlotTable, kernel: RoleSet, problem: ConvProblem, spec: KernelSpec
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


def _entry(
    name: str,
    prefix: str,
    kernel: RoleSet,
    tile: CudaTile,
    spec: KernelSpec,
    batch: int,
    problem: ConvProblem,
    table: SlotTable,
    rows: int,
    shared: int,
    early: bool,
    starts_next: bool,
) -> str:
    group_threads = kernel.warps * WARP
    threads = group_threads * rows
    bounds = str(threads)
    if tile.registers:
        blocks = max(1, min(32, _REGISTER_FILE // (threads * tile.registers)))
        bounds += f", {blocks}"
    lines = [
        f'extern "C" __global__ void __launch_bounds__({bounds}) {name}(const Arguments p) {{',
        *(["    let_next_start();"] if starts_next else []),
        "    extern __shared__ Quad shared_memory[];",
        f"    const int lane = threadIdx.x % {WARP};",
    ]
    if rows == 1:  # the plain text takes fewer registers
        lines += [
            f"    const int group = 0, warp = threadIdx.x / {WARP};",
            "    const Long row = blockIdx.x;",
            "    T* const shared = (T*)shared_memory;",
        ]
    else:
        lines += [
            f"    const int group = threadIdx.x / {group_threads};",
            f"    const int warp = threadIdx.x / {WARP} - group * {kernel.warps};",
            f"    const Long row = Long(blockIdx.x) * {rows} + group;",
            f"    T* const shared = (T*)(shared_memory + group * {shared // 16});",
        ]
    if spec.conv:
        if rows > 1:
            lines.append("    if (row >= p.n_rows) return;")
        lines.append("    const int begin = p.row_ptr[row], end = p.row_ptr[row + 1];")
    else:
        if rows > 1:
            lines.append(f"    if (row * {batch} >= p.n_rows) return;")
        lines.append(f"    const int begin = int(row * {batch});")
        lines.append(f"    const int end = int(min(p.n_rows, Long(begin) + {batch}));")
    if spec.wanted("y"):
        # attributes that a role never touches stay zero in its part
        start = batch * table.stride * (4 if spec.has("y") else 2)
        size = 2 * kernel.warps * batch * problem.irreps_in2.dim
        lines.append(
            f"    for (int t = warp * {WARP} + lane; t < {size}; t += {group_threads}) "
            f"shared[{start} + t] = 0;"
        )
    first = 0
    for i, role in enumerate(kernel.roles):
        last = first + role.chunks
        keyword = "if" if i == 0 else "else if"
        lines.append(
            f"    {keyword} (warp < {last}) "
            f"{prefix}_role{i}(p, shared, row, begin, end, lane, warp, warp - {first}, group);"
        )
        first = last
    if early:
        lines.append("    end_after_previous();")
    return "\n".join([*lines, "}"])


def _zeroed(
    lowered: LoweredProblem, sets: tuple[RoleSet, ...], spec: KernelSpec, plan: CudaPlan
) -> list[str]:
    """Results that some block adds to, or that some role leaves out."""
    problem = lowered.problem
    roles = [role for kernel in sets for role in kernel.roles]
    written = {path.i_out for path in lowered.paths}
    all_out = {i for i, block in enumerate(problem.irreps_out) if block.mul}
    zeroed = []
    if written != all_out or len({(i, r) for r in roles for i in r.outputs}) > len(written):
        zeroed.append("out")
    used = [role.i_in1 for role in roles]
    all_in = {i for i, block in enumerate(problem.irreps_in1) if block.mul}
    adds = spec.conv and not plan.deterministic
    if adds or set(used) != all_in or len(used) > len(set(used)):
        zeroed.append("dx")
    if len(sets) != 1:
        zeroed.append("dy")
    if problem.shared_weights:
        zeroed.append("dw")
    names = kernel_arguments(spec, plan)
    return [name for name in zeroed if name in names]


def emit_uvu(problem: ConvProblem, plan: CudaPlan, spec: KernelSpec) -> CudaKernel:
    """Print the kernels of one pass.

    Parameters
    ----------
    problem : ConvProblem
        All paths have mode ``uvu``.
    plan : CudaPlan
    spec : KernelSpec

    Raises
    ------
    UnsupportedProblemError
        A block has too many channels.
    """
    lowered = lower(problem)
    summing = spec.kind == "forward" or spec.wants == ("g",)
    tile = plan.forward if summing else getattr(plan, spec.kind)
    sets = role_sets(lowered, tile, alone=plan.deterministic)
    row, offsets = packed_row(problem.irreps_in1, plan)
    uses = [(i, role) for kernel in sets for role in kernel.roles for i in role.outputs]
    shared_outputs = {i for i, _ in uses if sum(j == i for j, _ in uses) > 1}
    inputs = [role.i_in1 for kernel in sets for role in kernel.roles]
    shared_inputs = {i for i in inputs if inputs.count(i) > 1}
    arguments = kernel_arguments(spec, plan)
    plain = all(
        Ring.of(role, problem, plan, spec, depth=tile.depth, plain=True)
        for kernel in sets
        for role in kernel.roles
    )
    quad = 16 // ITEMSIZE[problem.dtype]
    programs, entries = [], []
    run = 1
    tables = [SlotTable.of(lowered, kernel.groups, quad) for kernel in sets]
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
                f"problem {problem.key()} has a block of {kernel.roles[0].in1.mul} channels, "
                "more than one CUDA block can take: split it"
            )
        prefix = f"set{number}"
        threads = kernel.warps * WARP
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
        rows = max(1, min(tile.rows, _SHARED_BYTES // shared, _MAX_THREADS // threads))
        writer = RoleWriter(
            lowered,
            plan,
            spec,
            table,
            batch,
            shared_outputs,
            shared_inputs,
            offsets,
            row,
            ring,
            arguments,
        )
        texts = [_slot_function(prefix, lowered, kernel, table, spec.conv)]
        if spec.wanted("y"):
            texts.append(_flush_function(prefix, problem, kernel, batch, spec.conv, len(sets) > 1))
        texts += [
            writer.function(f"{prefix}_role{i}", prefix, role, kernel, rows)
            for i, role in enumerate(kernel.roles)
        ]
        name = f"mdcg_run_{number}"
        early = plan.overlaps and number > 0
        starts_next = plan.overlaps and number < len(sets) - 1
        texts.append(
            _entry(
                name,
                prefix,
                kernel,
                tile,
                spec,
                batch,
                problem,
                table,
                rows,
                shared,
                early,
                starts_next,
            )
        )
        programs.append("\n\n".join(texts))
        entries.append(CudaEntry(name, threads * rows, shared * rows, rows, early))
    real = "float" if problem.dtype == "float32" else "double"
    copies = row_functions(problem, plan)
    types = [
        f"// {plan}",
        f"typedef {real} T;",
        f"#define MDCG_VECTOR_ATOMICS {int(plan.vector_atomics and real == 'float')}",
        prelude("cuda_prelude") + prelude("warp_sums"),
    ]
    first = f"// mdcg {__version__}, problem {problem.key()}"
    header = [f"{first}, {spec}", *types, argument_struct(arguments)]

    def text(*parts: str) -> str:
        return "\n\n".join(parts) + "\n"

    return CudaKernel(
        source=text(*header, copies, *programs),
        programs=tuple(text(*header, program) for program in programs),
        copies=text(f"{first}, node rows", *types, copies),
        entries=tuple(entries),
        arguments=arguments,
        packed_in1=row,
        packs=spec.conv and not plain,
        run=run,
        zeroed=tuple(_zeroed(lowered, sets, spec, plan)),
    )
