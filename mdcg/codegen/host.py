"""C++ source of one kernel: path functions, then entry points that walk edges.

Every entry has the signature ``void entry(const int64_t* arg, int64_t task, char* scratch)``; the
meaning of ``arg`` is listed in :class:`HostKernel`. Rows of node features and outputs are *packed*
inside: component-major, multiplicities padded to whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from .._version import __version__
from ..plan import HostPlan
from ..plan.host import ITEMSIZE
from ..problem import ConvProblem, Irreps
from .expression import Statement, Sum, print_statements
from .host_paths import PathFunctions, literal
from .lowering import LoweredProblem, lower
from .spec import KernelSpec

__all__ = ["HostKernel", "emit_host", "packed_row"]

ENTRY = "mdcg_run"

# Rows a packing task takes.
ROWS_PER_TASK = 64


@dataclass(frozen=True)
class HostKernel:
    """Generated text and what a launcher must know of it.

    Attributes
    ----------
    source : str
        C++17 for gcc or clang, no includes beyond the C library and intrinsics.
    arguments : tuple of str
        Names of the 64-bit values of ``arg``, in order: addresses, or sizes for names starting with
        ``n_``.
    scratch_bytes : int
        Per thread, 64-byte aligned.
    packed_in1, packed_out : int
        Items of a packed row of node features and of output.
    """

    source: str
    arguments: tuple[str, ...]
    scratch_bytes: int
    packed_in1: int
    packed_out: int


def packed_row(irreps: Irreps, plan: HostPlan) -> tuple[int, tuple[int, ...]]:
    """Return items of a packed row and where each block starts in it."""
    offsets, total = [], 0
    for block in irreps:
        offsets.append(total)
        total += block.ir.dim * plan.padded(block.mul)
    return total, tuple(offsets)


def _row_function(
    name: str, step: str, irreps: Irreps, problem: ConvProblem, plan: HostPlan
) -> str:
    _, offsets = packed_row(irreps, plan)
    lines = [f"static void {name}(const T* __restrict src, T* __restrict dst) {{"]
    for block, offset in zip(irreps, offsets, strict=True):
        if block.mul:
            plain, packed = block.offset, offset
            source, target = (plain, packed) if step == "pack" else (packed, plain)
            function = f"{step}_{problem.layout}<{block.mul}, {block.ir.dim}>"
            lines.append(f"    {function}(src + {source}, dst + {target});")
    return "\n".join([*lines, "}"])


def _slot_function(lowered: LoweredProblem) -> str:
    """Evaluate all slots for L edges at once, lane = edge."""
    lines = ["static void slots(const T* __restrict y, T* __restrict m) {"]
    for group in lowered.groups:
        used = sorted({b for form in group.forms for b, _ in form.terms})
        lines.append("    {")
        lines += [f"        const V y{b} = *(const V*)(y + {b} * L);" for b in used]
        statements = [
            Statement(f"m{i}", Sum.of((value, (f"y{b}",)) for b, value in form.terms))
            for i, form in enumerate(group.forms)
        ]
        lines += [
            f"        {t}" for t in print_statements(statements, literal=literal, declare="V")
        ]
        lines += [
            f"        *(V*)(m + {group.first + i} * L) = m{i};" for i in range(len(group.forms))
        ]
        lines.append("    }")
    return "\n".join([*lines, "}"])


def _attribute_gradient_function(lowered: LoweredProblem) -> str:
    """Turn slot gradients (one vector of channel sums each) into edge attribute gradients."""
    lines = ["static void attribute_gradient(const V* __restrict p, T* __restrict dy) {"]
    for b, terms in lowered.attribute_sums().items():
        if not terms:
            lines.append(f"    dy[{b}] = 0;")
            continue
        statement = Statement("t", Sum.of((value, (f"p[{slot}]",)) for slot, value in terms))
        (line,) = print_statements([statement], literal=literal, declare="const V")
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


class _Scratch:
    """Hands out 64-byte aligned pieces of the thread's scratch memory."""

    def __init__(self, itemsize: int) -> None:
        self.itemsize = itemsize
        self.bytes = 0
        self.lines: list[str] = []

    def take(self, name: str, items: int, kind: str = "T") -> None:
        self.lines.append(f"    {kind}* const {name} = ({kind}*)(scratch + {self.bytes});")
        self.bytes += -(-items * self.itemsize // 64) * 64


def _arguments(spec: KernelSpec) -> tuple[str, ...]:
    names = ["n_rows", "x", "y", "w"]
    if spec.kind != "forward":
        names.append("g")
    if spec.kind == "double_backward":
        names += [{"x": "xa", "y": "yb", "w": "wc"}[name] for name in spec.given]
    names += ["out"] if spec.kind == "forward" else [f"d{name}" for name in spec.wants]
    if spec.conv:
        if spec.kind == "forward":
            names += ["order", "sender", "row_ptr", "task_ptr"]
        else:
            names += ["order", "sender", "receiver", "task_ptr", "n_block"]
            names += ["dx_rows"] if spec.kind == "backward" and "x" in spec.wants else []
    else:
        names.append("n_task_rows")
    return tuple(names)


def _declarations(arguments: Iterable[str]) -> list[str]:
    integers = {"order": "int32_t", "sender": "int32_t", "receiver": "int32_t"}
    lines = []
    for i, name in enumerate(arguments):
        if name.startswith("n_"):
            lines.append(f"    const int64_t {name} = arg[{i}];")
        elif name in ("row_ptr", "task_ptr"):
            lines.append(f"    const int64_t* const {name} = (const int64_t*)arg[{i}];")
        elif name in integers:
            lines.append(
                f"    const {integers[name]}* const {name} = (const {integers[name]}*)arg[{i}];"
            )
        else:
            lines.append(f"    T* const {name}_base = (T*)arg[{i}];")
    return lines


def _edge_function(problem: ConvProblem, plan: HostPlan, spec: KernelSpec) -> tuple[list[str], int]:
    """Return the texts that evaluate one edge and the items of scratch its uvw paths need."""
    lowered = lower(problem)
    _, offsets_in = packed_row(problem.irreps_in1, plan)
    _, offsets_out = packed_row(problem.irreps_out, plan)
    functions = PathFunctions(plan, spec, problem)
    calls, seen = [], set()
    for path in lowered.paths:
        calls.append(
            functions.call(
                path,
                offsets_in[path.i_in1],
                offsets_out[path.i_out],
                first_use=path.first_slot not in seen,
            )
        )
        seen.add(path.first_slot)
    names = ["x", "xa", "w", "ahead", "wc", "g", "m", "mb"]
    parameters = [f"const T* {name}" for name in names] + ["T* o", "T* dx", "T* dw", "V* p", "T* z"]
    text = [f"MDCG_INLINE void edge({', '.join(parameters)}) {{", *(f"    {c}" for c in calls), "}"]
    return [*functions.texts, "\n".join(text)], functions.scratch_items


def _entry(
    problem: ConvProblem,
    plan: HostPlan,
    spec: KernelSpec,
    arguments: tuple[str, ...],
    uvw_items: int,
) -> tuple[str, int]:
    lowered = lower(problem)
    in_items, _ = packed_row(problem.irreps_in1, plan)
    out_items, _ = packed_row(problem.irreps_out, plan)
    scratch = _Scratch(ITEMSIZE[problem.dtype])
    dim_y, num_weights = problem.irreps_in2.dim, problem.weight_numel
    weight_stride = 0 if problem.shared_weights else num_weights
    double = spec.kind == "double_backward"
    given_y = double and "y" in spec.given
    scratch.take("yt", max(1, dim_y) * plan.lanes)
    scratch.take("m", max(1, lowered.num_slots) * plan.lanes)
    if given_y:
        scratch.take("mb", max(1, lowered.num_slots) * plan.lanes)
    if "y" in spec.wants:
        scratch.take("p", max(1, lowered.num_slots) * plan.lanes, "V")
    scratch.take("z", max(1, uvw_items))

    edge = dict.fromkeys(
        ("x", "xa", "w", "ahead", "wc", "g", "mb", "o", "dx", "dw", "p"), "nullptr"
    )
    edge["m"], edge["z"] = "m + k", "z"
    edge["w"] = f"w_base + id[k] * {weight_stride}"
    if given_y:
        edge["mb"] = "mb + k"
    if double and "w" in spec.given:
        edge["wc"] = f"wc_base + id[k] * {weight_stride}"
    if "y" in spec.wants:
        edge["p"] = "p"
    if "w" in spec.wants:
        # shared weights: one row per task, summed by the caller in task order
        slot = f"slot * {num_weights}" if problem.shared_weights else f"id[k] * {num_weights}"
        edge["dw"] = f"dw_base + {slot}"
    before: list[str] = []
    after: list[str] = []
    if "y" in spec.wants:
        after.append(f"attribute_gradient(p, dy_base + id[k] * {max(1, dim_y)});")
    head: list[str] = []
    tail: list[str] = []
    if "w" in spec.wants and problem.shared_weights:
        # in one round of a double backward every tile has its own block of senders
        tile = spec.conv and double
        head.append(
            f"const int64_t slot = {'sender[task_ptr[2 * task]] / n_block' if tile else 'task'};"
        )

    if spec.conv:
        edge["x"] = f"x_base + (int64_t)sender[e + k] * {in_items}"
        if double and "x" in spec.given:
            edge["xa"] = f"xa_base + (int64_t)sender[e + k] * {in_items}"
        if spec.kind != "forward":
            edge["g"] = f"g_base + (int64_t)receiver[e + k] * {out_items}"
        if double and "x" in spec.wants:
            edge["dx"] = f"dx_base + (int64_t)sender[e + k] * {in_items}"
        if double and "g" in spec.wants:
            edge["o"] = f"dg_base + (int64_t)receiver[e + k] * {out_items}"
        ids = "id[k] = order[e + k];"
    else:
        ids = "id[k] = e + k;"
        _row_local(problem, spec, scratch, edge, before, after, in_items, out_items)

    begin, end = "task_ptr[task]", "task_ptr[task + 1]"
    if not spec.conv:
        head.append("const int64_t last = (task + 1) * n_task_rows;")
        begin, end = "task * n_task_rows", "(last < n_rows ? last : n_rows)"
    elif double:
        begin, end = "task_ptr[2 * task]", "task_ptr[2 * task + 1]"
    elif spec.kind == "forward":
        scratch.take("acc", max(1, out_items))
        edge["o"] = "acc"
        head += [
            "int64_t row = task_ptr[task];",
            "const int64_t last_row = task_ptr[task + 1];",
            f"zero<{out_items}>(acc);",
        ]
        begin, end = "row_ptr[row]", "row_ptr[last_row]"
        target = f"out_base + row * {problem.irreps_out.dim}"
        finish = f"{{ unpack_out(acc, {target}); zero<{out_items}>(acc); ++row; }}"
        before.append(f"while (e + k >= row_ptr[row + 1]) {finish}")
        tail.append(f"while (row < last_row) {finish}")
    elif spec.kind == "backward":
        head.append("const int64_t first_row = task * n_block;")
        head.append(
            "const int64_t last_row = first_row + n_block < n_rows ? first_row + n_block : n_rows;"
        )
        if "x" in spec.wants:
            each_row = "for (int64_t r = first_row; r < last_row; ++r) "
            head.append(f"{each_row}zero<{in_items}>(dx_base + r * {in_items});")
            edge["dx"] = f"dx_base + (int64_t)sender[e + k] * {in_items}"
            target = f"dx_rows_base + r * {problem.irreps_in1.dim}"
            tail.append(f"{each_row}unpack_in1(dx_base + r * {in_items}, {target});")
    if "w" in spec.wants and not problem.shared_weights and plan.streaming_stores:
        tail.append("stream_fence();")
    if weight_stride and plan.prefetch_edges:
        later = f"e + k + {plan.prefetch_edges}"
        row = f"(int64_t)order[{later}]" if spec.conv else f"({later})"
        before.append(f"const T* ahead = w_base + ({later} < stop ? {row} : 0) * {weight_stride};")
        edge["ahead"] = "ahead"
    names = ["x", "xa", "w", "ahead", "wc", "g", "m", "mb", "o", "dx", "dw", "p", "z"]
    loads = ["load_attributes(y_base, id, n, yt);", "slots(yt, m);"]
    if given_y:
        loads += ["load_attributes(yb_base, id, n, yt);", "slots(yt, mb);"]
    body = [
        *head,
        f"const int64_t stop = {end};",
        f"for (int64_t e = {begin}; e < stop; e += L) {{",
        "    const int n = stop - e < L ? (int)(stop - e) : L;",
        "    int64_t id[L];",
        f"    for (int k = 0; k < n; ++k) {ids}",
        *(f"    {line}" for line in loads),
        "    for (int k = 0; k < n; ++k) {",
        *(f"        {line}" for line in before),
        f"        edge({', '.join(edge[name] for name in names)});",
        *(f"        {line}" for line in after),
        "    }",
        "}",
        *tail,
    ]
    lines = [
        f'extern "C" void {ENTRY}(const int64_t* arg, int64_t task, char* scratch) {{',
        *_declarations(arguments),
        *scratch.lines,
        *(f"    {line}" for line in body),
        "}",
    ]
    return "\n".join(lines), scratch.bytes


def _row_local(
    problem: ConvProblem,
    spec: KernelSpec,
    scratch: _Scratch,
    edge: dict[str, str],
    before: list[str],
    after: list[str],
    in_items: int,
    out_items: int,
) -> None:
    """Batched product: pack operands of one row into scratch, unpack its results."""
    dim_in, dim_out = problem.irreps_in1.dim, problem.irreps_out.dim

    def operand(name: str, buffer: str, items: int, pack: str, dim: int) -> None:
        scratch.take(buffer, max(1, items))
        edge[name] = buffer
        before.append(f"{pack}({name}_base + id[k] * {dim}, {buffer});")

    def result(name: str, buffer: str, target: str, items: int, unpack: str, dim: int) -> None:
        scratch.take(buffer, max(1, items))
        edge[name] = buffer
        before.append(f"zero<{items}>({buffer});")
        after.append(f"{unpack}({buffer}, {target}_base + id[k] * {dim});")

    operand("x", "row_x", in_items, "pack_in1", dim_in)
    if spec.kind != "forward":
        operand("g", "row_g", out_items, "pack_out", dim_out)
    if "x" in spec.given:
        operand("xa", "row_xa", in_items, "pack_in1", dim_in)
    if spec.kind == "forward":
        result("o", "row_o", "out", out_items, "unpack_out", dim_out)
    if "x" in spec.wants:
        result("dx", "row_dx", "dx", in_items, "unpack_in1", dim_in)
    if "g" in spec.wants:
        result("o", "row_o", "dg", out_items, "unpack_out", dim_out)


def _packing(problem: ConvProblem, plan: HostPlan) -> list[str]:
    """Row functions, and entries for whole matrices: arg = n_rows, source, target."""
    texts = []
    for name, irreps in (("in1", problem.irreps_in1), ("out", problem.irreps_out)):
        items, _ = packed_row(irreps, plan)
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


@lru_cache(maxsize=64)
def _prelude() -> str:
    return (files(__package__) / "prelude.hpp").read_text()


def emit_host(problem: ConvProblem, plan: HostPlan, spec: KernelSpec) -> HostKernel:
    """Generate the C++ text of one kernel.

    Parameters
    ----------
    problem : ConvProblem
    plan : HostPlan
    spec : KernelSpec

    Returns
    -------
    HostKernel
        Equal arguments give equal text.
    """
    lowered = lower(problem)
    arguments = _arguments(spec)
    itemsize = ITEMSIZE[problem.dtype]
    edge_texts, uvw_items = _edge_function(problem, plan, spec)
    entry, scratch_bytes = _entry(problem, plan, spec, arguments, uvw_items)
    parts = [
        f"// mdcg {__version__}, problem {problem.key()}, kernel {spec}",
        f"// {plan}",
        f"// arg: {', '.join(arguments)}",
        f"typedef {'float' if problem.dtype == 'float32' else 'double'} T;",
        f"#define L {plan.lanes}",
        f"#define MDCG_ITEM_BYTES {itemsize}",
        f"#define MDCG_VECTOR_BYTES {itemsize * plan.lanes}",
        f"#define EDGE_DIM {problem.irreps_in2.dim}",
        _prelude(),
        _BATCH,
        *_packing(problem, plan),
        _slot_function(lowered),
        *([_attribute_gradient_function(lowered)] if "y" in spec.wants else []),
        *edge_texts,
        entry,
        "",
    ]
    return HostKernel(
        source="\n".join(parts),
        arguments=arguments,
        scratch_bytes=scratch_bytes,
        packed_in1=packed_row(problem.irreps_in1, plan)[0],
        packed_out=packed_row(problem.irreps_out, plan)[0],
    )
