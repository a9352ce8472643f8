"""CUDA text of a warp's work on the channels of one input block, before and after the weights."""

from __future__ import annotations

from ...plan.device import WARP
from ...problem import MulIrrep
from ..common.emit import attribute_gradients, power_of_two, store_lane_sums
from ..common.expression import Statement, Sum, Term, print_statements
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec
from ..common.uvu import output_sums, sum_of, uvu_sums
from .uvw_layout import Body, Piece, UvwLayout

__all__ = ["BodyWriter"]


class BodyWriter:
    """Prints the functions of all bodies and the calls to them.

    Parameters
    ----------
    lowered : LoweredProblem
    spec : KernelSpec
    layout : UvwLayout
    """

    def __init__(self, lowered: LoweredProblem, spec: KernelSpec, layout: UvwLayout) -> None:
        self.problem, self.spec, self.layout = lowered.problem, spec, layout
        self.places = layout.places
        self.lowered = lowered
        self.double = spec.kind == "double_backward"
        # numbers of rows: edge, sender, receiver, gradient of the sender's features
        self.rows = ["e", "s", "row", *(["to"] if spec.wanted("x") else [])]
        deterministic = layout.deterministic and self.problem.shared_weights
        block = f" + Long(blockIdx.x) * {self.problem.weight_numel}" if deterministic else ""
        self.shared_gradient = f"p.dw{block}"

    def calls(self, turn: int, phase: str) -> list[str]:
        """Return the calls of a turn's bodies.

        What follows the bodies of a phase waits for all lanes. So do bodies that add to the same
        rows; in the first phase each has vectors of its own.

        Parameters
        ----------
        turn : int
        phase : {"left", "pull"}
            Before the weights, or after them.
        """
        found = []
        for i, body in enumerate(self.layout.turns[turn].bodies):
            if phase in self._phases(body):
                found.append(f"{phase}{turn}_{i}(p, mine, {', '.join(self.rows)}, lane);")
                if phase == "pull":
                    found.append("__syncwarp();")
        return [*found, "__syncwarp();"] if found and phase == "left" else found

    def functions(self) -> list[str]:
        """Return all functions."""
        return [
            self._function(f"{phase}{t}_{i}", body, phase)
            for t, turn in enumerate(self.layout.turns)
            for i, body in enumerate(turn.bodies)
            for phase in self._phases(body)
        ]

    def _phases(self, body: Body) -> list[str]:
        if body.mode == "uvu":
            return ["pull"]
        left = "left_w" in self.places or "left_c" in self.places
        pull = "pull_w" in self.places or "pull_c" in self.places
        return [*(["left"] if left else []), *(["pull"] if pull else [])]

    # -- a function ------------------------------------------------------------------------------

    def _function(self, name: str, body: Body, phase: str) -> str:
        spec, in1 = self.spec, body.in1
        mul2 = body.pieces[0].path.mul2
        columns = self._columns(body)
        gives_x = phase == "pull" and spec.wanted("x")
        gives_y = phase == "pull" and spec.wanted("y") and bool(columns)
        low, high = (columns[0], columns[-1] + 1) if columns else (0, 0)
        parts = [(i, min(WARP, high - i)) for i in range(low, high, WARP)]
        lines = self._nonzeros(body, columns)
        if gives_y:
            lines += [f"T dy{i}[{power_of_two(n)}] = {{}};" for i, (_, n) in enumerate(parts)]
        lines.append(f"for (int u = {body.first} + lane; u < {body.last}; u += {WARP}) {{")
        work = []
        sender = f"s * {self.problem.irreps_in1.dim}"
        for a in range(in1.ir.dim):
            work.append(f"const T x{a} = __ldg(p.x + {sender} + {self._channel(in1, a)});")
            if spec.has("x"):
                work.append(f"const T a{a} = __ldg(p.xa + {sender} + {self._channel(in1, a)});")
        if gives_x:
            work += [f"T dx{a} = 0;" for a in range(in1.ir.dim)]
        for piece in body.pieces:
            work += ["{", *(f"    {line}" for line in self._piece(piece, body, phase))]
            if gives_y:
                sums = attribute_gradients(
                    self.lowered.forms(piece.path),
                    "p",
                    lambda b: f"dy{(b - low) // WARP}[{(b - low) % WARP}]",
                )
                work += [f"    {line}" for line in sums]
            work.append("}")
        if gives_x:
            start = self.layout.packed.get(body.i_in1)
            for a in range(in1.ir.dim):
                where = self._channel(in1, a)
                if start is not None:
                    where = f"{start[0] + a * start[1]} + u"
                work.append(self._add("dx", "to", where, f"dx{a}"))
        lines += [*(f"    {line}" for line in work), "}"]
        if gives_y:
            lines += self._store_attributes(parts, mul2)
        rows = ", ".join(f"Long {row}" for row in self.rows)
        loop = "{" if mul2 == 1 else f"for (int v = 0; v < {mul2}; ++v) {{"
        title = (
            f"// {in1}, channels {body.first} to {body.last}, {len(body.pieces)} {body.mode} paths"
        )
        return "\n".join(
            [
                title,
                f"MDCG_INLINE void {name}(const Arguments& p, T* mine, {rows}, int lane) {{",
                f"    {loop}",
                *(f"        {line}" for line in lines),
                "    }",
                "}",
            ]
        )

    def _piece(self, piece: Piece, body: Body, phase: str) -> list[str]:
        coupling = piece.path.coupling
        lines = []
        for name in ("m", *(("b",) if self.spec.has("y") else ())):
            lines += [
                f"const T {name}{i} = {name}{piece.path.first_nonzero}_{i};"
                for i in range(coupling.num_nonzeros)
            ]
        if phase == "pull" and self.spec.wanted("y"):
            lines += [f"T p{i} = 0;" for i in range(coupling.num_nonzeros)]
        if body.mode == "uvu":
            return lines + self._diagonal(piece.path)
        return lines + (self._left(piece) if phase == "left" else self._pull(piece))

    # -- operands --------------------------------------------------------------------------------

    def _channel(self, block: MulIrrep, component: int) -> str:
        """Place of channel u in a row of features or outputs."""
        if self.problem.layout == "mul_ir":
            return f"{block.offset + component} + u * {block.ir.dim}"
        return f"{block.offset + component * block.mul} + u"

    def _add(self, name: str, row: str, index: str, value: str) -> str:
        """Add to a row of results: the warp's own in shared memory, or the one in global memory."""
        if name in self.places:
            return f"mine[{self.places[name]} + {index}] += {value};"
        return f"add(p.{name} + {row} * {self.layout.widths[name]} + {index}, {value});"

    def _columns(self, body: Body) -> list[int]:
        """Edge attributes that the body reads, of copy v = 0."""
        return self.lowered.attributes(piece.path for piece in body.pieces)

    def _copy(self, columns: list[int]) -> int:
        """Distance of the copies v of a block of edge attributes."""
        for block in self.problem.irreps_in2:
            if columns and block.offset <= columns[0] < block.offset + block.dim:
                return block.ir.dim
        return 0

    def _nonzeros(self, body: Body, columns: list[int]) -> list[str]:
        lines = []
        mul2 = body.pieces[0].path.mul2
        copy = f" + v * {self._copy(columns)}" if mul2 > 1 else ""
        operands = [("m", "y", "y")]
        if self.spec.has("y"):
            operands.append(("b", "yb", "z"))
        for matrix, operand, letter in operands:
            start = f"p.{operand} + e * {self.problem.irreps_in2.dim}{copy}"
            lines += [f"const T {letter}{b} = __ldg({start} + {b});" for b in columns]
            known = set()
            statements = []
            for piece in body.pieces:
                first = piece.path.first_nonzero
                if piece.path.coupling.num_nonzeros and first not in known:
                    known.add(first)
                    for n, form in enumerate(self.lowered.forms(piece.path)):
                        value = Sum.of((k, (f"{letter}{b}",)) for b, k in form.terms)
                        statements.append(Statement(f"{matrix}{first}_{n}", value))
            lines += print_statements(statements, declare="const T")
        return lines

    def _vector(self, piece: Piece, name: str, component: int) -> str:
        """Component of the vector of channels (u, v)."""
        path, dim = piece.path, piece.path.coupling.dim_out
        channel = f"(u - {piece.first})" if piece.first else "u"
        rows = f"{channel} * {path.mul2 * dim}"
        if path.mul2 > 1:
            rows += f" + v * {dim}"
        return f"mine[{self.places[name] + piece.base + component} + {rows}]"

    # -- sums ------------------------------------------------------------------------------------

    def _left(self, piece: Piece) -> list[str]:
        """Vectors that the weights multiply: the path's product without them."""
        spec, lines = self.spec, []
        for c, entries in piece.path.coupling.by_output().items():
            mx = [(float(e.sign), (f"m{e.nonzero}", f"x{e.a}")) for e in entries]
            ma = [(float(e.sign), (f"m{e.nonzero}", f"a{e.a}")) for e in entries if spec.has("x")]
            bx = [(float(e.sign), (f"b{e.nonzero}", f"x{e.a}")) for e in entries if spec.has("y")]
            for name, terms in (("left_w", ma + bx if self.double else mx), ("left_c", mx)):
                if name in self.places:
                    lines += print_statements([Statement(f"{name}{c}", sum_of(terms))], declare="T")
                    lines.append(f"{self._vector(piece, name, c)} = {name}{c};")
        return lines

    def _pull(self, piece: Piece) -> list[str]:
        """Gradients of features and nonzeros from those of the vectors."""
        spec, coupling = self.spec, piece.path.coupling
        names = {"q": "pull_w", "h": "pull_c"}
        lines = [
            f"const T {letter}{c} = {self._vector(piece, name, c)};"
            for letter, name in names.items()
            if name in self.places
            for c in range(coupling.dim_out)
        ]
        # (operand, matrix, gradient of the vector that is bilinear in the two)
        terms_of = [("x", "m", "q")]
        if self.double:
            terms_of = [("x", "m", "h")] if spec.has("w") else []
            terms_of += [("x", "b", "q")] if spec.has("y") else []
            terms_of += [("a", "m", "q")] if spec.has("x") else []
        statements = []
        if spec.wanted("x"):
            for a, entries in coupling.by_input().items():
                terms: list[Term] = [
                    (float(e.sign), (f"{matrix}{e.nonzero}", f"{letter}{e.c}"))
                    for operand, matrix, letter in terms_of
                    if operand == "x"
                    for e in entries
                ]
                statements.append(Statement(f"dx{a}", sum_of(terms), add=True))
        if spec.wanted("y"):
            for nonzero, entries in coupling.by_nonzero().items():
                terms = [
                    (float(e.sign), (f"{operand}{e.a}", f"{letter}{e.c}"))
                    for operand, matrix, letter in terms_of
                    if matrix == "m"
                    for e in entries
                ]
                statements.append(Statement(f"p{nonzero}", sum_of(terms)))
        declared = [f"p{i}" for i in range(coupling.num_nonzeros)]
        return lines + print_statements(statements, declare="T", declared=declared)

    def _diagonal(self, path: LoweredPath) -> list[str]:
        """All of a path of mode ``uvu``: a lane has its channel's features, weights and outputs."""
        spec, problem, c = self.spec, self.problem, path.coupling
        lines = []
        copy = " + v" if path.mul2 > 1 else ""
        row = "" if problem.shared_weights else f"e * {problem.weight_numel} + "
        where = f"{row}{path.weight_offset} + u * {path.mul2}{copy}"
        if path.has_weight:
            lines.append(f"const T wv = __ldg(p.w + {where});")
            if spec.has("w"):
                lines.append(f"const T cv = __ldg(p.wc + {where});")
        if spec.kind != "forward":
            gradient = f"p.g + row * {problem.irreps_out.dim}"
            lines += [
                f"const T g{i} = __ldg({gradient} + {self._channel(path.out, i)});"
                for i in range(c.dim_out)
            ]
        declared = [f"p{i}" for i in range(c.num_nonzeros)]
        sums = uvu_sums(c, path.has_weight, spec)
        lines += print_statements(sums, declare="T", declared=declared)
        for i, message in output_sums(c, path.has_weight, spec).items():
            lines += print_statements([Statement(f"o{i}", message)], declare="T")
            lines.append(self._add("out", "row", self._channel(path.out, i), f"o{i}"))
        if spec.wanted("x"):
            lines += [f"dx{a} += d{a};" for a in range(c.dim_in)]
        if spec.wanted("w") and path.has_weight:
            if problem.shared_weights:
                lines.append(f"add({self.shared_gradient} + {where}, dwv);")
            else:
                lines.append(f"p.dw[{where}] = dwv;")
        return lines

    # -- gradients of edge attributes ------------------------------------------------------------

    def _store_attributes(self, parts: list[tuple[int, int]], mul2: int) -> list[str]:
        """Add the sums over lanes to the row's gradient."""
        lines = []
        for i, (start, n) in enumerate(parts):
            copy = f" + v * {self._copy([start])}" if mul2 > 1 else ""

            store = self._add("dy", "e", f"{start} + {{at}}{copy}", "{sum}")
            lines += store_lane_sums(i, n, power_of_two(n), store)
        return lines
