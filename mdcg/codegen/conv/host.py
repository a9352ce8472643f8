"""C++ source of one kernel: path functions, then entry points that loop over edges.

Every entry has the signature ``void entry(const int64_t* arg, int64_t task, char* scratch)``; the
meaning of ``arg`` is listed in :class:`HostKernel`. Rows of node features and outputs are *packed*
inside: component-major, multiplicities padded to whole vectors.
"""

from __future__ import annotations

from ...plan import HostPlan
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem, Irreps
from ..common.emit import HostKernel, host_head, packed_row
from ..common.expression import Statement, Sum, broadcast, print_statements
from ..common.lowering import LoweredProblem, lower
from ..common.spec import KernelSpec
from .host_entry import EntryWriter
from .host_paths import PathFunctions

__all__ = ["ROWS_PER_TASK", "emit_host"]

# Rows of a packing task.
ROWS_PER_TASK = 64


def _row_function(
    name: str, step: str, irreps: Irreps, problem: ConvProblem, plan: HostPlan
) -> str:
    _, offsets = packed_row(irreps, plan.padded)
    lines = [f"static void {name}(const T* __restrict src, T* __restrict dst) {{"]
    for block, offset in zip(irreps, offsets, strict=True):
        if block.mul:
            plain, packed = block.offset, offset
            source, target = (plain, packed) if step == "pack" else (packed, plain)
            function = f"{step}_{problem.layout}<{block.mul}, {block.ir.dim}>"
            lines.append(f"    {function}(src + {source}, dst + {target});")
    return "\n".join([*lines, "}"])


def _nonzero_function(lowered: LoweredProblem) -> str:
    """Print the function that evaluates all nonzeros for L edges at once, one per lane."""
    lines = ["static void nonzeros(const T* __restrict y, T* __restrict m) {"]
    for group in lowered.groups:
        used = sorted({b for form in group.forms for b, _ in form.terms})
        lines.append("    {")
        lines += [f"        const V y{b} = *(const V*)(y + {b} * L);" for b in used]
        statements = [
            Statement(f"m{i}", Sum.of((value, (f"y{b}",)) for b, value in form.terms))
            for i, form in enumerate(group.forms)
        ]
        lines += [
            f"        {t}" for t in print_statements(statements, literal=broadcast, declare="V")
        ]
        lines += [
            f"        *(V*)(m + {group.first + i} * L) = m{i};" for i in range(len(group.forms))
        ]
        lines.append("    }")
    return "\n".join([*lines, "}"])


def _attribute_gradient_function(lowered: LoweredProblem) -> str:
    """Print the function that turns gradients of nonzeros into gradients of edge attributes."""
    lines = ["static void attribute_gradient(const V* __restrict p, T* __restrict dy) {"]
    for b, terms in lowered.attribute_sums().items():
        if not terms:
            lines.append(f"    dy[{b}] = 0;")
            continue
        statement = Statement("t", Sum.of((value, (f"p[{nonzero}]",)) for nonzero, value in terms))
        (line,) = print_statements([statement], literal=broadcast, declare="const V")
        lines.append(f"    {{ {line} dy[{b}] = lane_sum(t); }}")
    return "\n".join([*lines, "}"])


_BATCH = """\
MDCG_INLINE void load_attributes(const T* y, const int64_t* id, int n, T* t) {
    constexpr int DIM = EDGE_DIM;
    for (int k = 0; k < n; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = y[id[k] * DIM + b];
    for (int k = n; k < L; ++k)
        for (int b = 0; b < DIM; ++b) t[b * L + k] = 0;
}
"""


def _arguments(spec: KernelSpec) -> tuple[str, ...]:
    names = ["n_rows", *spec.tensors("x", "y", "w")]
    if spec.conv:
        if spec.kind == "forward":
            names += ["order", "sender", "row_ptr", "task_ptr"]
        else:
            names += ["order", "sender", "receiver", "task_ptr", "n_block"]
            own_rows = spec.kind == "backward" and not spec.paired
            names += ["dx_rows"] if own_rows and "x" in spec.wants else []
        names += ["weight_row"] if spec.paired else []
    else:
        names.append("n_task_rows")
    return tuple(names)


def _path_calls(
    problem: ConvProblem, plan: HostPlan, functions: PathFunctions, grouped: bool
) -> list[list[str]]:
    """Return the statements that evaluate one edge, in groups if that is wanted.

    A group's outputs stay in the L1 cache while a forward convolution takes it over several edges.
    """
    _, offsets_in = packed_row(problem.irreps_in1, plan.padded)
    _, offsets_out = packed_row(problem.irreps_out, plan.padded)
    groups: list[list[str]] = [[]]
    seen: set[int] = set()
    items = 0
    for path in lower(problem).paths:
        width = path.out.ir.dim * plan.padded(path.out.mul)
        full = (items + width) * ITEMSIZE[problem.dtype] > plan.accumulator_bytes
        if grouped and full and groups[-1]:
            groups.append([])
            items = 0
        items += width
        first_use = path.first_nonzero not in seen
        at_in, at_out = offsets_in[path.i_in1], offsets_out[path.i_out]
        groups[-1].append(functions.call(path, at_in, at_out, first_use))
        seen.add(path.first_nonzero)
    return groups


def _packing(problem: ConvProblem, plan: HostPlan) -> list[str]:
    """Print functions that pack rows, and entries for matrices: arg = n_rows, source, target."""
    texts = []
    for name, irreps in (("in1", problem.irreps_in1), ("out", problem.irreps_out)):
        items, _ = packed_row(irreps, plan.padded)
        for step in ("pack", "unpack"):
            source, target = (irreps.dim, items) if step == "pack" else (items, irreps.dim)
            texts.append(_row_function(f"{step}_{name}", step, irreps, problem, plan))
            texts.append(
                f'extern "C" void mdcg_{step}_{name}(const int64_t* arg, int64_t task, char*) {{\n'
                f"    const int64_t end = (task + 1) * {ROWS_PER_TASK} < arg[0] "
                f"? (task + 1) * {ROWS_PER_TASK} : arg[0];\n"
                f"    for (int64_t r = task * {ROWS_PER_TASK}; r < end; ++r)\n"
                f"        {step}_{name}((const T*)arg[1] + r * {source}, "
                f"(T*)arg[2] + r * {target});\n"
                "}"
            )
    return texts


def emit_host(problem: ConvProblem, plan: HostPlan, spec: KernelSpec) -> HostKernel:
    """Generate the C++ text of one kernel; equal arguments give equal text."""
    lowered = lower(problem)
    arguments = _arguments(spec)
    functions = PathFunctions(plan, spec, problem)
    groups = _path_calls(problem, plan, functions, spec.kind == "forward" and spec.conv)
    writer = EntryWriter(problem, plan, spec, functions.scratch_items, groups)
    entry, scratch_bytes = writer.write(arguments)
    parts = [
        *host_head(problem, f"kernel {spec}", plan, arguments, EDGE_DIM=problem.irreps_in2.dim),
        _BATCH,
        *_packing(problem, plan),
        _nonzero_function(lowered),
        *([_attribute_gradient_function(lowered)] if "y" in spec.wants else []),
        *functions.texts,
        entry,
        "",
    ]
    return HostKernel(
        source="\n".join(parts),
        arguments=arguments,
        scratch_bytes=scratch_bytes,
        packed_in1=packed_row(problem.irreps_in1, plan.padded)[0],
        packed_out=packed_row(problem.irreps_out, plan.padded)[0],
    )
