"""C++ functions that evaluate one path of one edge, all channels."""

from __future__ import annotations

from dataclasses import dataclass

from ...plan import HostPlan
from ...problem import ConvProblem
from ..common.expression import Statement, Sum, broadcast, print_statements
from ..common.lowering import Coupling, LoweredPath
from ..common.spec import KernelSpec
from ..common.uvu import left_sums, pull_terms, uvu_lines

__all__ = ["PathFunctions"]


@dataclass(frozen=True)
class _Shape:
    """What a generated function depends on; paths of equal shape share it."""

    mode: str
    has_weight: bool
    coupling: Coupling
    mul_in: int
    mul_out: int
    mul2: int
    streaming: bool  # weight gradients are whole aligned vectors


class PathFunctions:
    """Emits each distinct path function once and prints calls to it.

    The functions take what this kernel needs and nothing else.
    """

    def __init__(self, plan: HostPlan, spec: KernelSpec, problem: ConvProblem) -> None:
        self.plan = plan
        self.spec = spec
        self.shared_weights = problem.shared_weights
        self.weight_numel = problem.weight_numel
        # whether the pass reads weight matrices, and their cotangents
        self.needs_w = spec.kind != "double_backward" or spec.has("x") or spec.has("y")
        self.needs_c = spec.has("w")
        self.sums = spec.kind == "forward" or spec.wanted("g")
        self._names: dict[_Shape, str] = {}
        self.texts: list[str] = []
        self.scratch_items = 0  # items of T of the largest uvw temporary

    def call(self, path: LoweredPath, offset_in: int, offset_out: int, first_use: bool) -> str:
        """Return the statement that evaluates ``path`` for the current edge.

        The path's blocks start at the offsets in the padded rows. On `first_use` it writes its
        nonzero gradients, later it adds to them.
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
        starts: dict[str, object] = {
            **dict.fromkeys(("x", "xa", "dx"), offset_in),
            **dict.fromkeys(("o", "g"), offset_out),
            **dict.fromkeys(("w", "wc", "dw", "old", "ahead"), weight),
            **dict.fromkeys(("m", "mb"), f"{path.first_nonzero} * L"),
            "p": path.first_nonzero,
        }
        arguments = ", ".join(
            f"{name} + {starts[name]}" if name in starts else name
            for name in self._parameters(shape)
        )
        template = f"<{'true' if first_use else 'false'}>" if "y" in self.spec.wants else ""
        return f"{self._names[shape]}{template}({arguments});"

    # -- arguments of a function ----------------------------------------------------------------

    def _parameters(self, shape: _Shape) -> list[str]:
        names = ["x", "m"]
        weighted = shape.has_weight
        if self.spec.kind == "forward":
            names += ["o"]
        else:
            names += ["g"]
            names += ["dx"] if self.spec.wanted("x") else []
            names += ["p"] if self.spec.wanted("y") else []
            if self.spec.wanted("w") and weighted:
                names += ["dw", "old"] if self.spec.paired else ["dw"]
        if self.spec.kind == "double_backward":
            names += ["o"] if self.spec.wanted("g") else []
            names += ["xa"] if self.spec.has("x") else []
            names += ["mb"] if self.spec.has("y") else []
            names += ["wc"] if self.spec.has("w") and weighted else []
        names += ["w"] if weighted else []
        names += ["ahead"] if self._prefetches(shape) else []
        names += ["z"] if shape.mode == "uvw" else []
        return names

    def _prefetches(self, shape: _Shape) -> bool:
        """Whether the path prefetches the weights of a later edge; uvw matrices need no help."""
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
        template = "template <bool FIRST>\n" if self.spec.wanted("y") else ""
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
        if self.spec.has("y"):
            lines += [f"    const V b{s} = splat(mb[{s} * L]);" for s in range(c.num_nonzeros)]
        if self.spec.wanted("y"):
            lines += [f"    V p{s} = {{}};" for s in range(c.num_nonzeros)]
        lines += self._uvw(shape) if shape.mode == "uvw" else self._channels(self._uvu(shape))
        if self.spec.wanted("y"):
            lines += [f"    p[{s}] = FIRST ? p{s} : p[{s}] + p{s};" for s in range(c.num_nonzeros)]
        return "\n".join([*lines, "}"])

    def _channels(self, body: list[str], index: str = "u", bound: str = "MUL") -> list[str]:
        """Wrap a body in the loop over whole vectors and a partial last one; N lanes are valid."""
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

    def _print(self, statements: list[Statement]) -> list[str]:
        return print_statements(statements, literal=broadcast, declare="V")

    # -- uvu: weight per channel ----------------------------------------------------------------

    def _uvu(self, shape: _Shape) -> list[str]:
        c = shape.coupling
        stride = shape.mul2
        lines = []
        if shape.has_weight:
            lines.append(f"const V wv = load_strided<N, {stride}>(w + u * {stride});")
            if self._prefetches(shape):
                lines.append(f"__builtin_prefetch(ahead + u * {stride});")
            if self.spec.has("w"):
                lines.append(f"const V cv = load_strided<N, {stride}>(wc + u * {stride});")
        lines += self._load_inputs(c, "u")
        if self.spec.kind != "forward":
            lines += [f"const V g{i} = load<L>(g + {i} * MP + u);" for i in range(c.dim_out)]
        # nonzero gradients p are summed over channels outside the body
        lines += uvu_lines(
            c,
            shape.has_weight,
            self.spec,
            "V",
            "store<L>(o + {0} * MP + u, load<L>(o + {0} * MP + u) + o{0});".format,
            add_input="store<L>(dx + {0} * MP + u, load<L>(dx + {0} * MP + u) + d{0});".format,
            literal=broadcast,
        )
        if self.spec.wanted("w") and shape.has_weight:
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

    def _load_inputs(self, c: Coupling, index: str) -> list[str]:
        """Return lines that load the features of some channels, and their cotangents."""
        arrays = {"x": "x", **({"a": "xa"} if self.spec.has("x") else {})}
        return [
            f"const V {letter}{a} = load<L>({array} + {a} * MP + {index});"
            for letter, array in arrays.items()
            for a in range(c.dim_in)
        ]

    # -- uvw: weight matrix between channels ----------------------------------------------------

    def _uvw(self, shape: _Shape) -> list[str]:
        """Compute t = M x on input channels, products with the weight matrix, and M^T of those."""
        c, plan = shape.coupling, self.plan
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
        # zt: what multiplies the weights W; zx: what multiplies their cotangent C
        first = self._load_inputs(c, "u")
        for i, left_w, left_c in left_sums(c, self.spec):
            for name, value, used in (("zx", left_c, self.needs_c), ("zt", left_w, self.needs_w)):
                if used:
                    first += self._print([Statement(f"{name}{i}", value)])
                    first.append(f"store<L>({name} + {i} * MP + u, {name}{i});")
        lines += self._channels(first)
        lines += self._channels(self._uvw_matrix(shape, row), "o_", "MOUT")
        if not (self.spec.wanted("x") or self.spec.wanted("y")):
            return lines
        lines += self._uvw_pull(shape, row)
        last = self._load_inputs(c, "k")
        for letter, array, _ in self._pulled():
            last += [f"const V {letter}{i} = load<L>({array} + {i} * MP + k);" for i in range(do)]
        features, nonzeros = pull_terms(c, self.spec)
        statements = []
        for a, terms in features.items() if self.spec.wanted("x") else ():
            last.append(f"V d{a} = load<L>(dx + {a} * MP + k);")
            statements.append(Statement(f"d{a}", Sum.of(terms), add=True))
        for nonzero, terms in nonzeros.items() if self.spec.wanted("y") else ():
            statements.append(Statement(f"p{nonzero}", Sum.of(terms), add=True))
        last += self._print(statements)
        if self.spec.wanted("x"):
            last += [f"store<L>(dx + {a} * MP + k, d{a});" for a in range(di)]
        return lines + self._channels(last, "k")

    def _pulled(self) -> list[tuple[str, str, str]]:
        """Return name, array and matrix of each gradient with respect to a matrix's operand."""
        return [
            *([("h", "zp", "wc")] if self.needs_c else []),
            *([("q", "zq", "w")] if self.needs_w else []),
        ]

    def _uvw_matrix(self, shape: _Shape, row: str) -> list[str]:
        """Return the body over output channels: outputs and weight gradients, both linear in zt."""
        do = shape.coupling.dim_out
        wants_out, wants_w = self.sums, self.spec.wanted("w")
        # summed from zero first: adding each product to the large total would lose digits
        lines = [f"V o{i} = {{}};" for i in range(do)] if wants_out else []
        if wants_w:
            lines += [f"const V g{i} = load<L>(g + {i} * MO + o_);" for i in range(do)]
        if not (wants_out or wants_w):
            return lines
        lines.append("for (int u = 0; u < MUL; ++u) {")
        for value, matrix, left, used in (
            ("wv", "w", "zt", self.needs_w),
            ("cv", "wc", "zx", self.needs_c),
        ):
            if wants_out and used:
                lines.append(f"    const V {value} = load<N>({matrix} + u * {row} + o_);")
                lines += [f"    o{i} += {value} * splat({left}[{i} * MP + u]);" for i in range(do)]
        if wants_w:
            terms = " + ".join(f"g{i} * splat(zt[{i} * MP + u])" for i in range(do))
            before = "old" if self.spec.paired else "dw"
            sums = self.shared_weights or self.spec.paired
            old = f"load<N>({before} + u * {row} + o_) + " if sums else ""
            value = terms if self.needs_w else "V{}"
            lines.append(f"    store<N>(dw + u * {row} + o_, {old}{value});")
        lines.append("}")
        if wants_out:
            for i in range(do):
                lines.append(f"store<L>(o + {i} * MO + o_, load<L>(o + {i} * MO + o_) + o{i});")
        return lines

    def _uvw_pull(self, shape: _Shape, row: str) -> list[str]:
        """Return lines for the products of the matrices with g, summed over output channels."""
        lines: list[str] = []
        do = shape.coupling.dim_out
        for _, target, matrix in self._pulled():
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
