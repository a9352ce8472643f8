"""C++ source of one convolution of the engine: blocks of edges, see ``conv_kernel.hpp``.

The text fits every instruction set, because the compiler's macros decide the length of vectors. The
outer loops run over input blocks, chunks of their channels, and paths. In the innermost one the
engine fills in a chunk of weights for all edges. The forward pass then sums messages over runs of
edges with the same receiver. The backward pass replaces weights by their gradients, which are
consumed at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...plan import EnginePlan
from ...plan.host import ITEMSIZE
from ...problem import ConvProblem
from ..common.emit import ENGINE_ROW_BYTES, engine_stride, packed_row, scalar_type, template, title
from ..common.lowering import LoweredPath, LoweredProblem, lower
from .engine_paths import EnginePaths

__all__ = ["EngineConv", "emit_engine_conv"]

_EXPORT = 'extern "C" __attribute__((visibility("default")))'

_ENTRIES = f"""\
{_EXPORT} void mdcg_conv_forward(const ConvBlock* b) {{ forward(b); }}
{_EXPORT} void mdcg_conv_backward(const ConvBlock* b) {{
    if (b->add_gradient)
        b->dx ? backward<false, true>(b) : backward<false, false>(b);
    else
        b->dx ? backward<true, true>(b) : backward<true, false>(b);
}}"""


@dataclass(frozen=True)
class EnginePath:
    """A path, and where its rows and its columns of weights start."""

    path: LoweredPath
    stride: int  # channels of a component, padding included
    panels: int  # 64-byte panels of channels in a chunk
    x_offset: int
    out_offset: int
    column: int


def _check(problem: ConvProblem) -> None:
    for path in problem.paths:
        if path.mode != "uvu" or not path.has_weight:
            raise ValueError(
                f"path {path} is {path.mode!r} with has_weight={path.has_weight}; the engine "
                "convolves with weighted 'uvu' paths only"
            )
        if problem.irreps_in2[path.i_in2].mul > 1:
            raise ValueError(
                f"second input is {problem.irreps_in2}, expected multiplicity 1 in every block: "
                "spherical harmonics"
            )
    if problem.shared_weights:
        raise ValueError("problem shares its weights, the engine has weights of every edge")


class EngineConv:
    """Writes the source of one convolution, for :func:`emit_engine_conv`."""

    def __init__(self, problem: ConvProblem, plan: EnginePlan) -> None:
        _check(problem)
        self.problem, self.plan = problem, plan
        self.lowered: LoweredProblem = lower(problem)
        self.itemsize = ITEMSIZE[problem.dtype]
        self.align = ENGINE_ROW_BYTES // self.itemsize
        self.x_width, self.in_offsets = packed_row(problem.irreps_in1, self._stride)
        self.out_width, self.out_offsets = packed_row(problem.irreps_out, self._stride)
        self.paths = EnginePaths()
        self.weight_width = 0
        self.groups = self._groups()
        self.scratch_bytes = 0
        self.offsets: dict[str, int] = {}
        nonzeros = max(1, self.lowered.num_nonzeros)
        chunk = max([1, *(group[0].panels for group in self.groups)]) * self.align
        dim = max([1, *(group[0].path.in1.ir.dim for group in self.groups)])
        for name, items in {
            "m": nonzeros * plan.edges,
            "p": nonzeros * plan.edges,
            "w": plan.edges * chunk,
            "slope": plan.edges * chunk,
            "tile": plan.edges * dim * chunk,
        }.items():
            self.offsets[name] = self.scratch_bytes
            self.scratch_bytes += -(-items * self.itemsize // 64) * 64

    def _stride(self, items: int) -> int:
        return engine_stride(items, self.problem.dtype)

    def _groups(self) -> list[list[EnginePath]]:
        """Return the paths of each input block."""
        members: dict[int, list[EnginePath]] = {}
        for path in self.lowered.paths:
            stride, panels = self._stride(path.in1.mul), self.plan.panels
            while stride // self.align % panels:
                panels //= 2
            at_in, at_out = self.in_offsets[path.i_in1], self.out_offsets[path.i_out]
            found = EnginePath(path, stride, panels, at_in, at_out, self.weight_width)
            members.setdefault(path.i_in1, []).append(found)
            self.weight_width += stride
        return [paths for _, paths in sorted(members.items())]

    # -- text ------------------------------------------------------------------------------------

    def write(self) -> str:
        """Return the source."""
        for group in self.groups:
            for path in group:
                self.paths.number(path.path.coupling)
        info = ["mdcg::MDCG_CONV_ABI", self.itemsize, self.plan.edges, self.scratch_bytes]
        info += [self.x_width, self.out_width, self.weight_width]
        templates = ["common/engine_vectors.hpp", "conv/conv_kernel.hpp", "conv/engine_prelude.hpp"]
        parts = [
            title(self.problem, "engine convolution"),
            f"// {self.plan}",
            f"typedef {scalar_type(self.problem.dtype)} T;",
            f"#define MDCG_EDGES {self.plan.edges}",
            *(template(name).rstrip("\n") for name in templates),
            "",
            "namespace {",
            "",
            self._nonzeros(),
            "",
            "\n\n".join(self.paths.texts),
            "",
            self._walk("forward"),
            "",
            self._walk("backward"),
            "",
            "}  // namespace",
            "",
            f"{_EXPORT} const int64_t mdcg_conv_info[7];",
            f"const int64_t mdcg_conv_info[7] = {{{', '.join(map(str, info))}}};",
            _ENTRIES,
        ]
        return "\n".join(parts) + "\n"

    def _nonzeros(self) -> str:
        """Nonzeros of all edges from their harmonics, and the transpose for gradients."""
        lines = ["static void nonzeros(const T* __restrict y, int n, T* __restrict m) {"]
        lines.append("    for (int e = 0; e < n; e += L) {")
        used = sorted({b for g in self.lowered.groups for f in g.forms for b, _ in f.terms})
        lines += [f"        const V y{b} = load(y + {b} * EDGES + e);" for b in used]
        for group in self.lowered.groups:
            for position, form in enumerate(group.forms):
                value = " + ".join(f"T({v.hex()}) * y{b}" for b, v in form.terms)
                lines.append(f"        store(m + {group.first + position} * EDGES + e, {value});")
        lines += ["    }", "}", ""]
        lines.append("static void harmonics(const T* __restrict p, int n, T* __restrict dy) {")
        lines.append("    for (int e = 0; e < EDGES; e += L) {")
        lines += ["        const bool used = e < n;"]
        for b, terms in self.lowered.attribute_sums().items():
            value = " + ".join(f"T({v.hex()}) * load(p + {s} * EDGES + e)" for s, v in terms)
            target = f"dy + {b} * EDGES + e"
            lines.append(
                f"        store({target}, {f'used ? {value} : V{{}}' if value else 'V{}'});"
            )
        lines += ["    }", "}"]
        return "\n".join(lines)

    def _walk(self, name: str) -> str:
        backward = name == "backward"
        find = "find_rows" if backward else "find_runs"
        lines = [
            *(["template <bool TABLE, bool DX>"] if backward else []),
            f"static void {name}(const ConvBlock* b) {{",
            "    Edges edges;",
            f"    {find}(b, {self.x_width}, {self.out_width}, edges);",
        ]
        used = {"m", "w"} if not backward else {"m", "w", "p", "slope", "tile"}
        for array, offset in self.offsets.items():
            if array in used:
                lines.append(f"    T* const {array} = (T*)(b->scratch + {offset});")
        lines.append("    nonzeros(b->harmonics, edges.count, m);")
        if backward:
            nonzeros = max(1, self.lowered.num_nonzeros)
            lines += [
                "    (void)slope, (void)tile;",
                f"    zero(p, {nonzeros} * EDGES);",
                "    zero(b->d_length, EDGES);",
            ]
        for group in self.groups:
            lines += [f"    {line}" for line in self._group(group, backward)]
        if backward:
            lines.append("    harmonics(p, edges.count, b->d_harmonics);")
        return "\n".join([*lines, "}"])

    def _group(self, group: list[EnginePath], backward: bool) -> list[str]:
        first = group[0]
        stride, panels, dim = first.stride, first.panels, first.path.in1.ir.dim
        template = f"{stride}, {panels}"
        lines = [f"for (int u = 0; u < {stride}; u += {panels} * A) {{"]
        if backward:
            lines.append(f"    if constexpr (DX) zero(tile, edges.count * {dim} * {panels} * A);")
        for one in group:
            number, column = self.paths.number(one.path.coupling), one.column
            rows = f"{one.x_offset} + u, {one.out_offset} + u"
            nonzeros = f"{one.path.first_nonzero} * EDGES"
            slope = "TABLE ? slope : nullptr" if backward else "nullptr"
            tile_of_weights = f"{{0, edges.count, {column} + u, {panels}}}"
            lines.append(f"    b->fill_weights(b->weights, {tile_of_weights}, w, {slope});")
            if backward:
                lines += [
                    f"    backward_{number}<{template}, TABLE, DX>(edges, {rows}, m + {nonzeros}, "
                    f"w, slope, p + {nonzeros}, b->d_length, tile);",
                    f"    if constexpr (!TABLE) b->add_gradient(b->weights, {tile_of_weights}, w);",
                ]
            else:
                lines.append(f"    forward_{number}<{template}>(edges, {rows}, m + {nonzeros}, w);")
        if backward:
            lines.append(
                f"    if constexpr (DX) add_rows<{panels}, {dim}, {stride}>"
                f"(b, {self.x_width}, {first.x_offset} + u, tile);"
            )
        return [*lines, "}"]


def emit_engine_conv(problem: ConvProblem, plan: EnginePlan | None = None) -> str:
    """Return the C++17 source of a convolution of the engine, for any instruction set.

    It exports the names in ``kernels/conv/conv_kernel.hpp``. Problems must have only weighted
    "uvu" paths, and multiplicity 1 in the second input; others raise ValueError.
    """
    return EngineConv(problem, plan or EnginePlan()).write()
