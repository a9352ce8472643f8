"""C++ source of a symmetric contraction of the engine, see ``contraction_kernel.hpp``.

The text fits every instruction set: vectors follow the compiler's macros. Rows are component-major
and padded, so that a vector of channels is one load for each component.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._version import __version__
from ..problem import Irreps, SymmetricContractionProblem
from .contraction import ContractionSpec, contraction_groups
from .expression import Statement, print_statements
from .host_paths import literal

__all__ = ["ABI", "emit_engine_contraction"]

# MDCG_CONTRACTION_ABI of csrc/engine/contraction_kernel.hpp.
ABI = 1

_ITEMSIZE = {"float32": 4, "float64": 8}
_EXPORT = 'extern "C" __attribute__((visibility("default")))'

_PRELUDE = """\
#include <stdint.h>
#if defined(__AVX512F__)
#define VECTOR_BYTES 64
#elif defined(__AVX__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
typedef T V __attribute__((vector_size(VECTOR_BYTES), may_alias));
constexpr int L = VECTOR_BYTES / sizeof(T);
static inline __attribute__((always_inline)) V splat(T value) { return value - V{}; }

struct Block {
    int64_t num_nodes;
    const int32_t* types;
    const T* x;
    const T* coefficients;
    int64_t typed;
    T* out;
    const T* g;
    T* dx;
    int64_t accumulate;
};
"""

_PARAMETERS = "const T* px, const T* pc, const T* pg, V* o, V* dx"


def _components(irreps: Irreps, align: int) -> tuple[int, list[int]]:
    """Return the width of a padded row, and where each component starts."""
    offsets, total = [], 0
    for block in irreps:
        stride = -(-block.mul // align) * align
        for _ in range(block.ir.dim):
            offsets.append(total)
            total += stride
    return total, offsets


class _Text:
    """Writes the passes of one problem."""

    def __init__(self, problem: SymmetricContractionProblem) -> None:
        self.problem = problem
        align = 64 // _ITEMSIZE[problem.dtype]
        self.stride = -(-problem.channels // align) * align
        self.x_width, self.x = _components(problem.irreps_in, align)
        self.out_width, self.out = _components(problem.irreps_out, align)

    def _place(self, name: str) -> str:
        kind, number = name[0], int(name[1:])
        offset = {"x": self.x, "g": self.out}[kind][number] if kind != "c" else number * self.stride
        return f"*(const V*)(p{kind} + {offset})"

    def _group(self, name: str, statements: Sequence[Statement]) -> str:
        """Return a function of its own: few values are alive at a time, and compilers are quick."""
        made = {s.target for s in statements if not s.add}
        used = {f for s in statements for _, factors in s.value.terms for f in factors}
        lines = [f"static __attribute__((noinline)) void {name}({_PARAMETERS}) {{"]
        for symbol in sorted(used - made, key=lambda name: (name[0], int(name[1:]))):
            lines.append(f"    const V {symbol} = {self._place(symbol)};")
        inner = [s for s in statements if not s.add]
        printed = print_statements(inner, literal=literal, declare="const V")
        lines += [f"    {line}" for line in printed]
        for s in statements:
            if not s.add:
                continue
            (line,) = print_statements([Statement("t", s.value)], literal=literal, declare="V")
            array, number = (
                ("dx", s.target[2:]) if s.target.startswith("dx") else ("o", s.target[1:])
            )
            lines.append(f"    {{ {line} {array}[{number}] += t; }}")
        return "\n".join([*lines, "}"])

    def _pass(self, kind: str, groups: int) -> str:
        problem, forward = self.problem, kind == "forward"
        size = max(1, problem.dim_out if forward else problem.dim_in)
        row, width = ("out", self.out_width) if forward else ("dx", self.x_width)
        offsets = self.out if forward else self.x
        unused = "nullptr"
        g = unused if forward else f"b->g + n * {self.out_width} + u"
        o, dx = ("sum", unused) if forward else (unused, "sum")
        lines = [
            f"{_EXPORT} void mdcg_contraction_{kind}(const Block* b) {{",
            "    for (int64_t n = 0; n < b->num_nodes; ++n) {",
            "        const int64_t type = b->typed ? b->types[n] : 0;",
            f"        const T* const c = b->coefficients + type * "
            f"{problem.num_coefficients * self.stride};",
            f"        T* const row = b->{row} + n * {width};",
            f"        for (int64_t u = 0; u < {self.stride}; u += L) {{",
            f"            V sum[{size}];",
            f"            const T* const px = b->x + n * {self.x_width} + u;",
        ]
        if forward:
            lines.append(f"            for (int i = 0; i < {size}; ++i) sum[i] = V{{}};")
        else:
            lines += [
                f"            V* const at[{size}] = {{"
                + ", ".join(f"(V*)(row + u + {offset})" for offset in offsets)
                + "};",
                f"            for (int i = 0; i < {size}; ++i)",
                "                sum[i] = b->accumulate ? *at[i] : V{};",
            ]
        call = f"(px, c + u, {g}, {o}, {dx});"
        lines += [f"            {kind}{number}{call}" for number in range(groups)]
        lines += [
            f"            *(V*)(row + u + {offset}) = sum[{i}];" for i, offset in enumerate(offsets)
        ]
        if not groups:
            lines.append("            (void)px; (void)c;")
        return "\n".join([*lines, "        }", "    }", "}"])

    def write(self) -> str:
        problem = self.problem
        info = [
            ABI,
            _ITEMSIZE[problem.dtype],
            self.x_width,
            self.out_width,
            problem.num_coefficients * self.stride,
            problem.num_coefficients,
        ]
        parts = [
            f"// mdcg {__version__}, problem {problem.key()}, engine contraction",
            f"typedef {'float' if problem.dtype == 'float32' else 'double'} T;",
            _PRELUDE,
            'extern "C" {',
            '__attribute__((visibility("default"))) extern const int64_t mdcg_contraction_info[6];',
            f"const int64_t mdcg_contraction_info[6] = {{{', '.join(map(str, info))}}};",
            "}",
        ]
        for kind, spec in (
            ("forward", ContractionSpec("forward", mixed=False)),
            ("backward", ContractionSpec("backward", mixed=False, wants=("x",))),
        ):
            groups = contraction_groups(problem, spec)
            parts += [self._group(f"{kind}{i}", group) for i, group in enumerate(groups)]
            parts.append(self._pass(kind, len(groups)))
        return "\n".join([*parts, ""])


def emit_engine_contraction(problem: SymmetricContractionProblem) -> str:
    """Generate the C++ text of both passes of a contraction.

    Parameters
    ----------
    problem : SymmetricContractionProblem

    Returns
    -------
    str
        Exports ``mdcg_contraction_info``, ``mdcg_contraction_forward`` and
        ``mdcg_contraction_backward``. Equal problems give equal text.
    """
    return _Text(problem).write()
