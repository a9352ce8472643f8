"""Source of a symmetric contraction of the engine, for CPUs.

Rows are component-major and padded to 64 bytes, so that a vector of channels is one run of
memory for each component. The text fits every instruction set: vectors follow the compiler's
macros. The coefficients are those of the node's type.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.host import ITEMSIZE
from ...problem import SymmetricContractionProblem
from ..common.emit import engine_stride, scalar_type, template, title
from ..common.expression import Statement
from .program import ContractionSpec, contraction_groups, group_function

__all__ = ["emit_engine_contraction"]

_EXPORT = 'extern "C" __attribute__((visibility("default")))'

_PARAMETERS = "const T* px, const T* pc, const T* pg, V* o, V* dx"


def _spec(kind: str) -> ContractionSpec:
    """Return the pass of a kind; the gradient is with respect to x."""
    return ContractionSpec(kind, mixed=False, wants=() if kind == "forward" else ("x",))


def _group(name: str, statements: Sequence[Statement], stride: int) -> str:
    def load(symbol: str) -> str:
        return f"*(const V*)(p{symbol[0]} + {int(symbol[1:]) * stride})"

    def add(target: str) -> str:
        array, number = ("dx", target[2:]) if target.startswith("dx") else ("o", target[1:])
        return f"{array}[{number}] += t;"

    return group_function(name, _PARAMETERS, statements, load, add)


def _pass(problem: SymmetricContractionProblem, kind: str, groups: int, stride: int) -> str:
    forward = kind == "forward"
    dim = problem.dim_out if forward else problem.dim_in
    row, size = "out" if forward else "dx", max(1, dim)
    places = [f"row + u + {i * stride}" for i in range(dim)]
    g = "nullptr" if forward else f"b->g + n * {problem.dim_out * stride} + u"
    o, dx = ("sum", "nullptr") if forward else ("nullptr", "sum")
    lines = [
        f"{_EXPORT} void mdcg_contraction_{kind}(const Block* b) {{",
        "    for (int64_t n = 0; n < b->num_nodes; ++n) {",
        "        const int64_t type = b->typed ? b->types[n] : 0;",
        f"        const T* const c = b->coefficients + type * {problem.num_coefficients * stride};",
        f"        T* const row = b->{row} + n * {dim * stride};",
        f"        for (int64_t u = 0; u < {stride}; u += L) {{",
        f"            V sum[{size}];",
        f"            const T* const px = b->x + n * {problem.dim_in * stride} + u;",
    ]
    if forward:
        lines.append(f"            for (int i = 0; i < {size}; ++i) sum[i] = V{{}};")
    else:
        pointers = ", ".join(f"(V*)({place})" for place in places)
        lines += [
            f"            V* const at[{size}] = {{{pointers}}};",
            f"            for (int i = 0; i < {size}; ++i)",
            "                sum[i] = b->accumulate ? *at[i] : V{};",
        ]
    call = f"(px, c + u, {g}, {o}, {dx});"
    lines += [f"            {kind}{number}{call}" for number in range(groups)]
    lines += [f"            *(V*)({place}) = sum[{i}];" for i, place in enumerate(places)]
    if not groups:
        lines.append("            (void)px; (void)c;")
    return "\n".join([*lines, "        }", "    }", "}"])


def emit_engine_contraction(problem: SymmetricContractionProblem) -> str:
    """Generate the C++ text of both passes of a contraction; equal problems give equal text.

    It exports the names in ``kernels/contraction_kernel.hpp``.
    """
    stride = engine_stride(problem.channels, problem.dtype)
    coefficients = problem.num_coefficients
    info: list[str | int] = [
        "mdcg::MDCG_CONTRACTION_ABI",
        ITEMSIZE[problem.dtype],
        problem.dim_in * stride,
        problem.dim_out * stride,
    ]
    info += [coefficients * stride, coefficients]
    parts = [
        title(problem, "engine contraction"),
        f"typedef {scalar_type(problem.dtype)} T;",
        template("common/engine_vectors.hpp"),
        template("contraction/contraction_kernel.hpp"),
        "typedef mdcg::ContractionBlock<T> Block;",
        'extern "C" {',
        '__attribute__((visibility("default"))) extern const int64_t mdcg_contraction_info[6];',
        f"const int64_t mdcg_contraction_info[6] = {{{', '.join(map(str, info))}}};",
        "}",
    ]
    for kind in ("forward", "backward"):
        groups = contraction_groups(problem, _spec(kind))
        parts += [_group(f"{kind}{i}", group, stride) for i, group in enumerate(groups)]
        parts.append(_pass(problem, kind, len(groups), stride))
    return "\n".join([*parts, ""])
