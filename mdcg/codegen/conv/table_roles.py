"""CUDA text of one role of a fused convolution: a warp's loop over the edges of a receiver."""

from __future__ import annotations

from ...plan.device import WARP
from ..common.emit import power_of_two, store_lane_sums
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec
from ..common.uvu import output_sums, uvu_sums
from .cuda_paths import NonzeroTable
from .cuda_roles import Role

__all__ = ["TableRoleWriter", "sum_chunks"]


def _shuffles(size: int) -> int:
    """Return the exchanges between lanes that summing ``size`` values, a power of two, takes."""
    return size - 1 + (WARP // size).bit_length() - 1


def sum_chunks(count: int) -> tuple[tuple[int, int], ...]:
    """Return starts and sizes (powers of two, the last may reach beyond) of values summed at once.

    As few exchanges between lanes as there can be: 17 values are 16 and one.

    Parameters
    ----------
    count : int
        Values of an edge, each to be summed over the lanes of a warp; 0: none.

    Returns
    -------
    tuple of (int, int)
        First value and number of values (1 to 32) of each sum; in order, and without gaps.
    """
    chunks: list[tuple[int, int]] = []
    start = 0
    while start < count:
        left = count - start
        up = power_of_two(left)
        down = min(WARP, 1 << (left.bit_length() - 1))
        whole = up <= WARP and _shuffles(up) <= _shuffles(down) + 5
        size = up if whole else down
        chunks.append((start, size))
        start += size
    return tuple(chunks)


class TableRoleWriter:
    """Prints the function of one role.

    Parameters
    ----------
    lowered : LoweredProblem
    spec : KernelSpec
        Forward or backward; with or without gradients of x.
    role : Role
        One channel per lane.
    table : NonzeroTable
    batch : int
        Edges per evaluation of the path matrices.
    warps : int
        Of the block.
    stored_outputs : set of int
        Output blocks that no kernel before has written: stored, others are added to.
    stores_inputs : bool
        The same of the role's block of the features' gradient.
    degree : int
        Of the table's polynomials. Cubic ones stay in registers, for the next edges; others are
        read where they are used, from caches.
    """

    def __init__(
        self,
        lowered: LoweredProblem,
        spec: KernelSpec,
        role: Role,
        table: NonzeroTable,
        *,
        batch: int,
        warps: int,
        stored_outputs: frozenset[int],
        stores_inputs: bool,
        degree: int = 3,
    ) -> None:
        self.lowered, self.spec, self.role, self.table = lowered, spec, role, table
        self.problem = lowered.problem
        self.batch, self.warps = batch, warps
        self.stored_outputs, self.stores_inputs = stored_outputs, stores_inputs
        self.degree = degree
        self.forward = spec.kind == "forward"
        self.attributes = self.problem.irreps_in2.dim
        self.dim = role.in1.ir.dim

    def function(self, name: str, prefix: str) -> str:
        """Return the role's function; ``prefix`` names the helpers of its kernel."""
        role, batch, stride = self.role, self.batch, self.table.stride
        features = self.problem.irreps_in1.dim
        row = self.attributes
        lines = [
            f"// {role.in1} by {role.chunks} warps, {len(role.paths)} paths",
            f"MDCG_INLINE void {name}(const Arguments& p, Ahead& ahead, Record* records, "
            "T* matrices, T* parts, Long row, Long begin, int count, int lane, int warp, "
            "int chunk) {",
            f"    const int channel = chunk * {WARP} + lane;",
            *self._channel(),
            *self._table(),
            f"    const T* const features = p.x + {role.in1.offset} + u;",
            *(f"    {line}" for line in self._state()),
            f"    T {', '.join(f'n{a}' for a in range(self.dim))};",
            "    const auto load_edge = [&](const Record& r) {",
            *(f"        {line}" for line in self._load_row()),
            f"        const T* const x = features + Long(r.sender) * {features};",
            *(f"        n{a} = __ldg(x + {a * role.in1.mul});" for a in range(self.dim)),
            "    };",
            "    int buffer = 0, turn = 0;",
            f"    for (int first = 0; first < count; first += {batch}) {{",
            f"        const int many = min({batch}, count - first);",
            f"        const bool more = first + {batch} < count;",
            f"        turn = turn + 1 < {self.warps} ? turn + 1 : 0;",
            "        if (more) "
            f"fetch(p, ahead, begin, first + {batch} + lane, count, warp == turn);",
            f"        const Record* const record = records + buffer * {batch};",
            f"        const T* const m_batch = matrices + buffer * {batch * stride};",
        ]
        if not self.forward:
            size = self.warps * batch * row
            lines += [
                f"        if (first > 0 && warp == turn) to_vectors<{self.warps}>(p, "
                f"parts + (buffer ^ 1) * {size}, begin, first - {batch}, count, lane);",
                f"        T* const part = parts + buffer * {size} + warp * {batch * row};",
            ]
        lines += [
            "        load_edge(record[0]);",
            "#pragma unroll 1",
            "        for (int k = 0; k < many; ++k) {",
            *(f"            {line}" for line in self._edge()),
            "        }",
            f"        if (more) {prefix}_make(p, ahead, row, records + (buffer ^ 1) * {batch}, "
            f"matrices + (buffer ^ 1) * {batch * stride}, first + {batch} + lane, count, "
            "warp == turn, lane, warp);",
            "        __syncthreads();",
            "        buffer ^= 1;",
            "    }",
        ]
        if self.forward:
            lines += [f"    {line}" for line in self._store_outputs()]
        else:
            lines += [
                "    if (count > 0 && warp == turn) {",
                f"        const int first = (count - 1) / {batch} * {batch};",
                f"        to_vectors<{self.warps}>(p, parts + (buffer ^ 1) * {size}, begin, first, "
                "count, lane);",
                "    }",
            ]
        return "\n".join([*lines, "}"])

    # -- weights --------------------------------------------------------------------------------

    def _table(self) -> list[str]:
        if self.degree != 3:
            return ["    const Two* const table = (const Two*)p.table + u;"]
        names = ", ".join(f"c{i}" for i in range(len(self.role.paths)))
        return [
            "    const Cubic* const table = p.table + u;",
            f"    Cubic {names};",
            "    int there = -1;  // row of the table in registers: edges are in order of length",
        ]

    def _load_row(self) -> list[str]:
        if self.degree != 3:
            return []
        return [
            "if (r.row != there) {",
            f"    const Cubic* const from = table + Long(r.row) * {self.problem.weight_numel};",
            *(
                f"    c{i} = load(from + {path.weight_offset});"
                for i, path in enumerate(self.role.paths)
            ),
            "    there = r.row;",
            "}",
        ]

    def _weights(self) -> list[str]:
        if self.degree != 3:
            columns = self.problem.weight_numel * ((self.degree + 1) // 2)
            return [f"const Two* const from = table + Long(record[k].row) * {columns};"]
        lines = [] if self.forward else ["const T twice = 2 * t, half_more = T(1.5) * t;"]
        for i in range(len(self.role.paths)):
            lines.append(f"const T w{i} = value_of(c{i}, t);")
            if not self.forward:
                lines.append(f"const T v{i} = slope_of(c{i}, twice, half_more);")
        return lines

    def _weight(self, number: int, path: LoweredPath) -> list[str]:
        if self.degree == 3:
            return [f"const T wv = w{number};"]
        call = f"value_at<{self.problem.weight_numel}>(from + {path.weight_offset}, t"
        if self.forward:
            return [f"const T wv = {call});"]
        return [f"T v{number};", f"const T wv = {call}, v{number});"]

    # -- operands -------------------------------------------------------------------------------

    def _channel(self) -> list[str]:
        if self.role.whole:
            return ["    const int u = channel;"]
        mul = self.role.in1.mul
        return [
            f"    const bool inside = channel < {mul};",
            f"    const int u = inside ? channel : {mul - 1};",
        ]

    def _place(self, i_out: int, component: int) -> str:
        block = self.problem.irreps_out[i_out]
        return f"{block.offset + component * block.mul} + u"

    def _state(self) -> list[str]:
        width = self.problem.irreps_out.dim
        lines = []
        if not self.forward:
            lines.append(f"const T* const gradient = p.g + row * {width};")
        for i_out, block in self.role.outputs.items():
            for i in range(block.ir.dim):
                if self.forward:
                    lines.append(f"T o_{i_out}_{i} = 0;")
                else:
                    place = self._place(i_out, i)
                    lines.append(f"const T g_{i_out}_{i} = __ldg(gradient + {place});")
        return lines

    def _store_outputs(self) -> list[str]:
        width = self.problem.irreps_out.dim
        lines = [f"T* const out = p.out + row * {width};"]
        lines.append("{" if self.role.whole else "if (inside) {")
        for i_out, block in self.role.outputs.items():
            sign = "=" if i_out in self.stored_outputs else "+="
            for i in range(block.ir.dim):
                lines.append(f"    out[{self._place(i_out, i)}] {sign} o_{i_out}_{i};")
        return [*lines, "}"]

    # -- one edge -------------------------------------------------------------------------------

    def _edge(self) -> list[str]:
        role = self.role
        value = "n{0}" if role.whole else "inside ? n{0} : T(0)"
        lines = [
            "const T t = record[k].t;",
            *(f"const T x{a} = {value.format(a)};" for a in range(self.dim)),
        ]
        lines += [
            *self._weights(),
            "if (k + 1 < many) load_edge(record[k + 1]);",
            f"const T* const m = m_batch + k * {self.table.stride};",
        ]
        chunks = sum_chunks(self.attributes)
        if not self.forward:
            lines.append("T along = 0;")
            lines += [f"T dy{n}[{size}] = {{}};" for n, (_, size) in enumerate(chunks)]
            if self.spec.wanted("x"):
                lines += [f"T dx{a} = 0;" for a in range(self.dim)]
        for i, path in enumerate(role.paths):
            lines += ["{", *(f"    {line}" for line in self._path(i, path)), "}"]
        if self.forward:
            return lines
        if self.spec.wanted("x"):
            sign = "=" if self.stores_inputs else "+="
            lines.append(
                f"T* const to = p.dx + Long(record[k].to) * {self.problem.irreps_in1.dim} + "
                f"{role.in1.offset} + u;"
            )
            if not role.whole:
                lines.append("if (inside) {")
            lines += [f"    to[{a * role.in1.mul}] {sign} dx{a};" for a in range(self.dim)]
            if not role.whole:
                lines.append("}")
        lines.append("dy0[0] = along * record[k].slope;")
        for n, (start, size) in enumerate(chunks):
            count = min(size, self.attributes - start)
            store = f"part[k * {self.attributes} + {start} + {{at}}] = {{sum}};"
            lines += store_lane_sums(n, count, size, store)
        return lines

    def _sum(self, b: int) -> str:
        """Name of an edge's sum: an attribute's gradient."""
        for n, (start, size) in enumerate(sum_chunks(self.attributes)):
            if start <= b < start + size:
                return f"dy{n}[{b - start}]"
        raise AssertionError(b)

    def _path(self, number: int, path: LoweredPath) -> list[str]:
        c = path.coupling
        lines = [*self.table.loads(path, "m"), *self._weight(number, path)]
        if not self.forward:
            lines += [f"const T g{i} = g_{path.i_out}_{i};" for i in range(c.dim_out)]
            lines += [f"T p{s} = 0;" for s in range(c.num_nonzeros)]
        sums = uvu_sums(c, True, self.spec)
        lines += print_statements(
            sums, declare="T", declared=[f"p{s}" for s in range(c.num_nonzeros)]
        )
        for i, message in output_sums(c, True, self.spec).items():
            # the message first: adding each product to the large total would lose digits
            lines += print_statements([Statement(f"o{i}", message)], declare="T")
            lines.append(f"o_{path.i_out}_{i} += o{i};")
        if self.forward:
            return lines
        if self.spec.wanted("x"):
            lines += [f"dx{a} += d{a};" for a in range(c.dim_in)]
        lines.append(f"along += dwv * v{number};")
        for s, form in enumerate(self.lowered.forms(path)):
            for b, value in form.terms:
                if b:  # the constant's place is the length's
                    gradient = Sum.of([(value, (f"p{s}",))])
                    lines += print_statements([Statement(self._sum(b), gradient, add=True)])
        return lines
