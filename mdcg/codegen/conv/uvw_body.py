"""CUDA text of a warp's work on the channels of one input block, before and after the weights."""

from __future__ import annotations

from ...plan.device import WARP
from ...problem import MulIrrep
from ..common.emit import AttributeSums
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec
from ..common.uvu import left_sums, pull_terms, uvu_lines
from .uvw_layout import Body, Piece, UvwLayout

__all__ = ["BodyWriter"]


class BodyWriter:
    """Prints the functions of all bodies and the calls to them."""

    def __init__(self, lowered: LoweredProblem, spec: KernelSpec, layout: UvwLayout) -> None:
        self.problem, self.spec, self.layout = lowered.problem, spec, layout
        self.places = layout.places
        self.lowered = lowered
        # numbers of rows: edge, sender, receiver, gradient of the sender's features
        self.rows = ["e", "s", "row", *(["to"] if spec.wanted("x") else [])]
        deterministic = layout.deterministic and self.problem.shared_weights
        block = f" + Long(blockIdx.x) * {self.problem.weight_numel}" if deterministic else ""
        self.shared_gradient = f"p.dw{block}"

    def calls(self, turn: int, phase: str) -> list[str]:
        """Return the calls of a turn's bodies before the weights ("left"), or after ("pull").

        What follows the bodies of a phase waits for all lanes. So do bodies that add to the same
        rows; in the first phase each has vectors of its own.
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
        copy = f" + v * {self._copy(columns)}" if mul2 > 1 else ""
        gives_y = phase == "pull" and spec.wanted("y") and bool(columns)
        gradients = AttributeSums(columns)
        lines = self._nonzeros(body, columns)
        if gives_y:
            lines += gradients.declare()
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
                sums = gradients.add(self.lowered.forms(piece.path), "p")
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
            # the sums over lanes are added to the gradient of the row
            lines += gradients.store(
                lambda start: self._add("dy", "e", f"{start} + {{at}}{copy}", "{sum}")
            )
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
        lines = []
        for c, left_w, left_c in left_sums(piece.path.coupling, self.spec):
            for name, value in (("left_w", left_w), ("left_c", left_c)):
                if name in self.places:
                    lines += print_statements([Statement(f"{name}{c}", value)], declare="T")
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
        features, nonzeros = pull_terms(coupling, spec)
        statements = []
        if spec.wanted("x"):
            statements += [Statement(f"dx{a}", Sum.of(t), add=True) for a, t in features.items()]
        if spec.wanted("y"):
            statements += [Statement(f"p{n}", Sum.of(terms)) for n, terms in nonzeros.items()]
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
        lines += uvu_lines(
            c,
            path.has_weight,
            spec,
            "T",
            lambda i: self._add("out", "row", self._channel(path.out, i), f"o{i}"),
        )
        if spec.wanted("w") and path.has_weight:
            if problem.shared_weights:
                lines.append(f"add({self.shared_gradient} + {where}, dwv);")
            else:
                lines.append(f"p.dw[{where}] = dwv;")
        return lines
