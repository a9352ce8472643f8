"""C++ functions that evaluate one path of one edge, all channels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...plan import HostPlan
from ...problem import ConvProblem
from ..common.expression import Statement, Term, broadcast, print_statements
from ..common.lowering import Coupling, LoweredPath
from ..common.spec import KernelSpec
from ..common.uvu import output_sums, uvu_sums
from ..common.uvu import sum_of as _sum

__all__ = ["PathFunctions"]


@dataclass(frozen=True)
class _Shape:
    """What a generated function depends on; equal shapes share it."""

    mode: str
    has_weight: bool
    coupling: Coupling
    mul_in: int
    mul_out: int
    mul2: int
    streaming: bool  # weight gradients are whole aligned vectors


class PathFunctions:
    """Emits each distinct path function once and prints calls to it.

    Parameters
    ----------
    plan : HostPlan
    spec : KernelSpec
        The functions take what this kernel needs and nothing else.
    problem : ConvProblem
    """

    def __init__(self, plan: HostPlan, spec: KernelSpec, problem: ConvProblem) -> None:
        self.plan = plan
        self.spec = spec
        self.shared_weights = problem.shared_weights
        self.weight_numel = problem.weight_numel
        self._names: dict[_Shape, str] = {}
        self.texts: list[str] = []
        self.scratch_items = 0  # items of T of the largest uvw temporary

    def call(self, path: LoweredPath, offset_in: int, offset_out: int, first_use: bool) -> str:
        """Return the statement that evaluates ``path`` for the current edge.

        Parameters
        ----------
        path : LoweredPath
        offset_in, offset_out : int
            Start of the path's blocks in the padded rows.
        first_use : bool
            The path is the first to write its nonzero gradients.
        """
        lanes = self.plan.lanes
        aligned = not (path.in1.mul % lanes or path.weight_offset % lanes)
        aligned = aligned and path.mul2 == 1 and self.weight_numel % lanes == 0
        shape = _Shape(
            mode=path.mode,
            has_weight=path.has_weight,
            coupling=path.coupling,
            mul_in=path.in1.mul,
            mul_out=path.out.mul,
            mul2=path.mul2,
            streaming=aligned and self.plan.streaming_stores and not self.spec.paired,
        )
        if shape not in self._names:
            self._names[shape] = f"path{len(self._names)}"
            self.texts.append(self._function(self._names[shape], shape))
        stride = path.out.mul if path.mode == "uvw" else 1
        weight = path.weight_offset + path.v * stride
        values = {
            "x": f"x + {offset_in}",
            "xa": f"xa + {offset_in}",
            "dx": f"dx + {offset_in}",
            "o": f"o + {offset_out}",
            "g": f"g + {offset_out}",
            "w": f"w + {weight}",
            "wc": f"wc + {weight}",
            "dw": f"dw + {weight}",
            "old": f"old + {weight}",
            "ahead": f"ahead + {weight}",
            "m": f"m + {path.first_nonzero} * L",
            "mb": f"mb + {path.first_nonzero} * L",
            "p": f"p + {path.first_nonzero}",
            "z": "z",
        }
        arguments = ", ".join(values[name] for name in self._parameters(shape))
        template = f"<{'true' if first_use else 'false'}>" if "y" in self.spec.wants else ""
        return f"{self._names[shape]}{template}({arguments});"

    # -- what a function takes ------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return name in self.spec.given

    def _wants(self, name: str) -> bool:
        return name in self.spec.wants

    def _parameters(self, shape: _Shape) -> list[str]:
        names = ["x", "m"]
        weighted = shape.has_weight
        if self.spec.kind == "forward":
            names += ["o"]
        else:
            names += ["g"]
            names += ["dx"] if self._wants("x") else []
            names += ["p"] if self._wants("y") else []
            if self._wants("w") and weighted:
                names += ["dw", "old"] if self.spec.paired else ["dw"]
        if self.spec.kind == "double_backward":
            names += ["o"] if self._wants("g") else []
            names += ["xa"] if self._has("x") else []
            names += ["mb"] if self._has("y") else []
            names += ["wc"] if self._has("w") and weighted else []
        names += ["w"] if weighted else []
        names += ["ahead"] if self._prefetches(shape) else []
        names += ["z"] if shape.mode == "uvw" else []
        return names

    def _prefetches(self, shape: _Shape) -> bool:
        """Whether the path fetches the weights of a later edge; uvw matrices stream anyway."""
        streamed = shape.has_weight and shape.mode == "uvu" and not self.shared_weights
        return streamed and self.plan.prefetch_edges > 0

    def _signature(self, name: str, shape: _Shape) -> str:
        mutable = {"o", "dx", "dw", "z"}
        parameters = []
        for parameter in self._parameters(shape):
            if parameter == "p":
                parameters.append("V* __restrict p")
            else:
                const = "" if parameter in mutable else "const "
                # a row of gradients may be read and written
                alone = "" if self.spec.paired and parameter in ("dw", "old") else "__restrict "
                parameters.append(f"{const}T* {alone}{parameter}")
        template = "template <bool FIRST>\n" if self._wants("y") else ""
        return f"{template}static void {name}({', '.join(parameters)}) {{"

    def _function(self, name: str, shape: _Shape) -> str:
        c = shape.coupling
        lines = [
            f"// {shape.mode}, {shape.mul_in} -> {shape.mul_out} channels, "
            f"{c.dim_in} -> {c.dim_out} components, {len(c.entries)} entries, "
            f"{c.num_nonzeros} nonzeros",
            self._signature(name, shape),
            f"    constexpr int MUL = {shape.mul_in}, MP = padded(MUL);",
        ]
        lines += [f"    const V m{s} = splat(m[{s} * L]);" for s in range(c.num_nonzeros)]
        if self._has("y"):
            lines += [f"    const V b{s} = splat(mb[{s} * L]);" for s in range(c.num_nonzeros)]
        if self._wants("y"):
            lines += [f"    V p{s} = {{}};" for s in range(c.num_nonzeros)]
        lines += self._uvw(shape) if shape.mode == "uvw" else self._channels(self._uvu(shape))
        if self._wants("y"):
            lines += [f"    p[{s}] = FIRST ? p{s} : p[{s}] + p{s};" for s in range(c.num_nonzeros)]
        return "\n".join([*lines, "}"])

    def _channels(self, body: list[str], index: str = "u", bound: str = "MUL") -> list[str]:
        """Wrap a body in the loop over whole vectors and the partial one; N lanes are valid."""
        return [
            f"    auto body_{index} = [&](auto n, int {index}) __attribute__((always_inline)) {{",
            "        constexpr int N = decltype(n)::value;",
            "        (void)N;",
            *(f"        {line}" for line in body),
            "    };",
            f"    for (int i = 0; i + L <= {bound}; i += L) body_{index}(Int<L>{{}}, i);",
            f"    if constexpr ({bound} % L != 0) "
            f"body_{index}(Int<{bound} % L>{{}}, {bound} / L * L);",
        ]

    def _print(self, statements: list[Statement], declared: Iterable[str] = ()) -> list[str]:
        return print_statements(statements, literal=broadcast, declare="V", declared=declared)

    # -- uvu: weight per channel ----------------------------------------------------------------

    def _uvu(self, shape: _Shape) -> list[str]:
        c = shape.coupling
        stride = shape.mul2
        lines = []
        if shape.has_weight:
            lines.append(f"const V wv = load_strided<N, {stride}>(w + u * {stride});")
            if self._prefetches(shape):
                lines.append(f"__builtin_prefetch(ahead + u * {stride});")
            if self._has("w"):
                lines.append(f"const V cv = load_strided<N, {stride}>(wc + u * {stride});")
        for a in range(c.dim_in):
            lines.append(f"const V x{a} = load<L>(x + {a} * MP + u);")
            if self._has("x"):
                lines.append(f"const V a{a} = load<L>(xa + {a} * MP + u);")
        if self.spec.kind != "forward":
            lines += [f"const V g{i} = load<L>(g + {i} * MP + u);" for i in range(c.dim_out)]
        # nonzero gradients p are summed over channels outside the body
        lines += self._print(
            uvu_sums(c, shape.has_weight, self.spec), [f"p{s}" for s in range(c.num_nonzeros)]
        )
        lines += self._accumulate_outputs(shape)
        if self._wants("x"):
            for a in range(c.dim_in):
                lines.append(f"store<L>(dx + {a} * MP + u, load<L>(dx + {a} * MP + u) + d{a});")
        if self._wants("w") and shape.has_weight:
            target = f"dw + u * {stride}"
            if self.shared_weights or self.spec.paired:
                before = f"old + u * {stride}" if self.spec.paired else target
                old = f"load_strided<N, {stride}>({before})"
                lines.append(f"store_strided<N, {stride}>({target}, {old} + dwv);")
            elif shape.streaming:
                lines.append(f"stream({target}, dwv);")
            else:
                lines.append(f"store_strided<N, {stride}>({target}, dwv);")
        return lines

    def _accumulate_outputs(self, shape: _Shape) -> list[str]:
        """Lines for ``o_c += sum_a M_ac s_a`` (+ ``B_ac r_a`` in a double backward)."""
        lines: list[str] = []
        for i, message in output_sums(shape.coupling, shape.has_weight, self.spec).items():
            # the message first: adding each product to the large total would lose digits
            lines += self._print([Statement(f"o{i}", message)])
            lines.append(f"store<L>(o + {i} * MP + u, load<L>(o + {i} * MP + u) + o{i});")
        return lines

    # -- uvw: weight matrix between channels ----------------------------------------------------

    def _uvw(self, shape: _Shape) -> list[str]:
        """Three steps: t = M x on input channels, products with the weight matrix, M^T back."""
        c, kind, plan = shape.coupling, self.spec.kind, self.plan
        di, do = c.dim_in, c.dim_out
        rows = do * plan.padded(shape.mul_in)
        self.scratch_items = max(self.scratch_items, 4 * rows)
        row = f"{shape.mul2} * MOUT"
        lines = [
            f"    constexpr int MOUT = {shape.mul_out}, MO = padded(MOUT), ROWS = {do} * MP;",
            "    T *const zx = z, *const zt = z + ROWS, *const zp = z + 2 * ROWS, "
            "*const zq = z + 3 * ROWS;",
            "    (void)zx; (void)zt; (void)zp; (void)zq; (void)MO;",
        ]
        double = kind == "double_backward"
        need_zx = kind != "double_backward" or self._has("w")
        need_zt = double and (self._has("x") or self._has("y"))
        # t: what multiplies W forward; zx: what multiplies C
        first: list[str] = [f"const V x{a} = load<L>(x + {a} * MP + u);" for a in range(di)]
        first += [
            f"const V a{a} = load<L>(xa + {a} * MP + u);" for a in range(di) if self._has("x")
        ]
        for i, entries in c.by_output().items():
            mx = [(float(e.sign), (f"m{e.nonzero}", f"x{e.a}")) for e in entries]
            ta = [(float(e.sign), (f"m{e.nonzero}", f"a{e.a}")) for e in entries]
            tb = [(float(e.sign), (f"b{e.nonzero}", f"x{e.a}")) for e in entries]
            if need_zx:
                first += self._print([Statement(f"zx{i}", _sum(mx))])
                first.append(f"store<L>(zx + {i} * MP + u, zx{i});")
            if need_zt:
                terms: list[Term] = [
                    *(ta if self._has("x") else []),
                    *(tb if self._has("y") else []),
                ]
                first += self._print([Statement(f"zt{i}", _sum(terms))])
                first.append(f"store<L>(zt + {i} * MP + u, zt{i});")
        lines += self._channels(first)
        lines += self._channels(self._uvw_matrix(shape, row, need_zx, need_zt), "o_", "MOUT")
        if kind == "forward":
            return lines
        lines += self._uvw_pull(shape, row)
        last = [f"const V x{a} = load<L>(x + {a} * MP + k);" for a in range(di)]
        last += [f"const V a{a} = load<L>(xa + {a} * MP + k);" for a in range(di) if self._has("x")]
        pulled_p = not double or self._has("w")  # gradient reaching M x
        pulled_q = double and (self._has("x") or self._has("y"))
        for i in range(do):
            last += [f"const V p_{i} = load<L>(zp + {i} * MP + k);"] if pulled_p else []
            last += [f"const V q_{i} = load<L>(zq + {i} * MP + k);"] if pulled_q else []
        statements: list[Statement] = []
        for a, entries in c.by_input().items():
            terms = []
            for e in entries:
                terms += [(float(e.sign), (f"m{e.nonzero}", f"p_{e.c}"))] if pulled_p else []
                terms += [(float(e.sign), (f"b{e.nonzero}", f"q_{e.c}"))] if self._has("y") else []
            if self._wants("x"):
                old = f"load<L>(dx + {a} * MP + k)"
                statements.append(Statement(f"d{a}", _sum([(1.0, (old,)), *terms])))
        if self._wants("y"):
            for nonzero, entries in c.by_nonzero().items():
                terms = [(1.0, (f"p{nonzero}",))]
                for e in entries:
                    terms += [(float(e.sign), (f"x{e.a}", f"p_{e.c}"))] if pulled_p else []
                    terms += [(float(e.sign), (f"a{e.a}", f"q_{e.c}"))] if self._has("x") else []
                statements.append(Statement(f"p{nonzero}", _sum(terms)))
        last += self._print(statements, [f"p{s}" for s in range(c.num_nonzeros)])
        if self._wants("x"):
            last += [f"store<L>(dx + {a} * MP + k, d{a});" for a in range(di)]
        if self._wants("x") or self._wants("y"):
            lines += self._channels(last, "k")
        return lines

    def _uvw_matrix(self, shape: _Shape, row: str, need_zx: bool, need_zt: bool) -> list[str]:
        """Body over output channels: outputs and weight gradients, both linear in t."""
        do, kind = shape.coupling.dim_out, self.spec.kind
        double = kind == "double_backward"
        wants_out = kind == "forward" or (double and self._wants("g"))
        wants_w = self._wants("w")
        # summed from zero first: adding each product to the large total would lose digits
        lines = [f"V o{i} = {{}};" for i in range(do)] if wants_out else []
        if kind != "forward" and wants_w:
            lines += [f"const V g{i} = load<L>(g + {i} * MO + o_);" for i in range(do)]
        if not (wants_out or wants_w):
            return lines
        lines.append("for (int u = 0; u < MUL; ++u) {")
        inner = []
        left = "zt" if double else "zx"
        if wants_out:
            if not double or need_zt:
                inner.append(f"const V wv = load<N>(w + u * {row} + o_);")
                inner += [f"o{i} += wv * splat({left}[{i} * MP + u]);" for i in range(do)]
            if double and self._has("w"):
                inner.append(f"const V cv = load<N>(wc + u * {row} + o_);")
                inner += [f"o{i} += cv * splat(zx[{i} * MP + u]);" for i in range(do)]
        if wants_w:
            terms = (
                " + ".join(f"g{i} * splat({left}[{i} * MP + u])" for i in range(do))
                if not double or need_zt
                else "V{}"
            )
            before = "old" if self.spec.paired else "dw"
            sums = self.shared_weights or self.spec.paired
            old = f"load<N>({before} + u * {row} + o_) + " if sums else ""
            inner.append(f"store<N>(dw + u * {row} + o_, {old}{terms});")
        lines += [f"    {line}" for line in inner]
        lines.append("}")
        if wants_out:
            for i in range(do):
                lines.append(f"store<L>(o + {i} * MO + o_, load<L>(o + {i} * MO + o_) + o{i});")
        return lines

    def _uvw_pull(self, shape: _Shape, row: str) -> list[str]:
        """Lines for p = C g and q = W g (backward: p = W g), summed over output channels."""
        lines: list[str] = []
        do, double = shape.coupling.dim_out, self.spec.kind == "double_backward"
        if not (self._wants("x") or self._wants("y")):
            return lines
        jobs = [("zp", "w")] if not double else []
        if double:
            jobs += [("zp", "wc")] if self._has("w") else []
            jobs += [("zq", "w")] if self._has("x") or self._has("y") else []
        for target, matrix in jobs:
            accumulate = [f"const V wv = load<N>({matrix} + u * {row} + j);"]
            accumulate += [f"t{i} += wv * load<L>(g + {i} * MO + j);" for i in range(do)]
            lines.append("    for (int u = 0; u < MP; ++u) {")
            lines.append("        V " + ", ".join(f"t{i} = {{}}" for i in range(do)) + ";")
            lines.append("        if (u < MUL) {")
            lines += [f"        {line}" for line in self._channels(accumulate, "j", "MOUT")]
            lines.append("        }")
            lines += [f"        {target}[{i} * MP + u] = lane_sum(t{i});" for i in range(do)]
            lines.append("    }")
        return lines
