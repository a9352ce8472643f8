"""CUDA text of one role of a fused convolution: a warp's loop over the edges of a receiver."""

from __future__ import annotations

from collections.abc import Iterable

from ...plan.device import WARP
from ..common.emit import power_of_two, store_lane_sums
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredPath, LoweredProblem
from ..common.spec import KernelSpec
from ..common.uvu import output_sums, uvu_sums
from .cuda_paths import NonzeroTable
from .cuda_roles import Role

__all__ = ["TableRoleWriter", "part_stride", "sum_chunks"]


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


def part_stride(attributes: int) -> int:
    """Return the items of a row of sums over lanes: an odd number, so that rows use all banks."""
    return attributes | 1


def _each_channel(statements: Iterable[str]) -> list[str]:
    """Print statements for each channel ``c`` of a lane."""
    return [
        "#pragma unroll",
        "for (int c = 0; c < CHANNELS; ++c) {",
        *(f"    {statement}" for statement in statements),
        "}",
    ]


def _store(to: str, values: str, add: bool) -> str:
    return f"*(Values*)({to}) {'+=' if add else '='} {values};"


class TableRoleWriter:
    """Prints the function of one role.

    Parameters
    ----------
    lowered : LoweredProblem
    spec : KernelSpec
        Forward or backward; with or without gradients of x.
    role : Role
        The multiplicity of its input block is a multiple of the channels of a lane.
    table : NonzeroTable
    batch : int
        Edges per evaluation of the path matrices.
    warps : int
        Of the block, for each share of a batch.
    shares : int
        Parts into which a batch is divided.
    lane : int
        Of the kernel: which gradients of the edges' vectors it adds to.
    stored_outputs : set of int
        Output blocks that no kernel before has written: stored, others are added to.
    stores_inputs : bool
        The same of the role's block of the features' gradient.
    edges_at_once : int
        Edges that an iteration of the loop takes, 1 or 2. Each has registers of its own for
        features, which are loaded one iteration before they are needed.
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
        shares: int,
        lane: int,
        stored_outputs: frozenset[int],
        stores_inputs: bool,
        edges_at_once: int,
    ) -> None:
        self.lowered, self.spec, self.role, self.table = lowered, spec, role, table
        self.problem = lowered.problem
        self.batch, self.warps, self.shares = batch, warps, shares
        self.de = f"p.de + {lane} * p.n_de" if lane else "p.de"
        self.stored_outputs, self.stores_inputs = stored_outputs, stores_inputs
        self.edges_at_once = edges_at_once
        self.forward = spec.kind == "forward"
        self.attributes = self.problem.irreps_in2.dim
        self.dim = role.in1.ir.dim

    def function(self, name: str, prefix: str) -> str:
        """Return the role's function; ``prefix`` names the helpers of its kernel."""
        role, batch, stride = self.role, self.batch, self.table.stride
        features = self.problem.irreps_in1.dim
        row = part_stride(self.attributes)
        lines = [
            f"// {role.in1} by {role.chunks} warps, {len(role.paths)} paths",
            f"MDCG_INLINE void {name}(const Arguments& p, Ahead& ahead, Record* records, "
            "T* matrices, T* parts, Long row, Long begin, int count, int lane, int warp, "
            "int share, int place, int chunk) {",
            f"    constexpr int CHANNELS = {role.channels};",
            "    typedef Vec<CHANNELS> Values;",
            *(f"    {line}" for line in self._channels()),
            *(f"    {line}" for line in self._table()),
            f"    const T* const features = p.x + {role.in1.offset} + base;",
            *(f"    {line}" for line in self._state()),
            f"    Values next[{self.edges_at_once}][{self.dim}];  // features of edges to come",
            "    const auto load_row = [&](const Record& r) {",
            *(f"        {line}" for line in self._load_row()),
            "    };",
            f"    const auto load_features = [&](Values (&to)[{self.dim}], const Record& r) {{",
            f"        const T* const x = features + Long(r.sender) * {features};",
            *(
                f"        to[{a}] = *(const Values*)(x + {a * role.in1.mul});"
                for a in range(self.dim)
            ),
            "    };",
            "    int buffer = 0, turn = 0;",
            f"    for (int first = 0; first < count; first += {batch}) {{",
            f"        const int left = min({batch}, count - first);",
            f"        const int start = left * share / {self.shares};",
            f"        const int many = left * (share + 1) / {self.shares} - start;",
            f"        const bool more = first + {batch} < count;",
            f"        turn = turn + 1 < {self.warps * self.shares} ? turn + 1 : 0;",
            "        if (more) "
            f"fetch(p, ahead, begin, first + {batch}, count, lane, warp == turn);",
            f"        const Record* const record = records + buffer * {batch} + start;",
            f"        const T* const m_batch = matrices + buffer * {batch * stride} + "
            f"start * {stride};",
        ]
        if not self.forward:
            size = self.warps * batch * row
            lines += [
                f"        if (first > 0 && warp == turn) to_vectors<{self.warps}>(p, {self.de}, "
                f"parts + (buffer ^ 1) * {size}, records + (buffer ^ 1) * {batch}, {batch}, lane);",
                f"        T* const part = parts + buffer * {size} + place * {batch * row} + "
                f"start * {row};",
            ]
        lines += [
            "        if (many > 0) {",
            "            load_row(record[0]);",
            *(
                f"            load_features(next[{i}], record[min({i}, many - 1)]);"
                for i in range(self.edges_at_once)
            ),
            "        }",
            "#pragma unroll 1",
            "        for (int k = 0; k < many;) {",
            *(f"            {line}" for line in self._edges()),
            "        }",
            f"        if (more) {prefix}_make(p, ahead, row, records + (buffer ^ 1) * {batch}, "
            f"matrices + (buffer ^ 1) * {batch * stride}, first + {batch}, count, lane, warp, "
            "warp == turn);",
            "        __syncthreads();",
            "        buffer ^= 1;",
            "    }",
        ]
        if self.forward:
            lines += [f"    {line}" for line in self._store_outputs()]
        else:
            lines += [
                "    if (count > 0 && warp == turn) {",
                f"        const int left = (count - 1) % {batch} + 1;",
                f"        to_vectors<{self.warps}>(p, {self.de}, parts + (buffer ^ 1) * {size}, "
                f"records + (buffer ^ 1) * {batch}, left, lane);",
                "    }",
            ]
        return "\n".join([*lines, "}"])

    # -- weights --------------------------------------------------------------------------------

    def _table(self) -> list[str]:
        names = ", ".join(f"a{i}[HALF]" for i in range(len(self.role.paths)))
        return [
            "const Two* const table = (const Two*)p.table + base;",
            f"Pairs<CHANNELS> {names};",
            "int loaded_row = -1;  // of the table: edges are in order of length",
        ]

    def _load_row(self) -> list[str]:
        width = self.problem.weight_numel
        return [
            "if (r.row != loaded_row) {",
            f"    const Two* const from = table + Long(r.row) * ({width} * HALF);",
            "#pragma unroll",
            "    for (int k = 0; k < HALF; ++k) {",
            *(
                f"        a{i}[k] = *(const Pairs<CHANNELS>*)"
                f"(from + k * {width} + {path.weight_offset});"
                for i, path in enumerate(self.role.paths)
            ),
            "    }",
            "    loaded_row = r.row;",
            "}",
        ]

    def _weights(self) -> list[str]:
        lines = ["const IntervalPoint point(record[k].z);"]
        evaluated = []
        for i in range(len(self.role.paths)):
            lines.append(f"T w{i}[CHANNELS];")
            evaluated.append(f"w{i}[c] = point.value(a{i}, c);")
            if not self.forward:
                lines.append(f"T slope{i}[CHANNELS];")
                evaluated.append(f"slope{i}[c] = point.slope(a{i}, c);")
        return [*lines, *_each_channel(evaluated)]

    # -- operands -------------------------------------------------------------------------------

    def _channels(self) -> list[str]:
        mul, channels = self.role.in1.mul, self.role.channels
        first = f"chunk * {WARP * channels} + lane * {channels}"
        if self.role.whole:
            return [f"const int base = {first};"]
        return [
            f"const bool inside = {first} < {mul};",
            f"const int base = min({first}, {mul - channels});",
        ]

    def _place(self, i_out: int, component: int) -> int:
        block = self.problem.irreps_out[i_out]
        return block.offset + component * block.mul

    def _state(self) -> list[str]:
        width = self.problem.irreps_out.dim
        components = [
            (i_out, i) for i_out, block in self.role.outputs.items() for i in range(block.ir.dim)
        ]
        if self.forward:
            return [f"Values o_{i_out}_{i} = {{}};" for i_out, i in components]
        return [
            f"const T* const gradient = p.g + row * {width} + base;",
            *(
                f"const Values g_{i_out}_{i} = "
                f"*(const Values*)(gradient + {self._place(i_out, i)});"
                for i_out, i in components
            ),
        ]

    def _store_outputs(self) -> list[str]:
        stores, parts = [], []
        for i_out, block in self.role.outputs.items():
            add = i_out not in self.stored_outputs
            for i in range(block.ir.dim):
                to, values = f"out + {self._place(i_out, i)}", f"o_{i_out}_{i}"
                stores.append(_store(to, values, add))
                parts.append(f"add_part({to}, {values});")
        return [
            f"T* const out = p.out + row * {self.problem.irreps_out.dim} + base;",
            "if (PARTS > 1) {",
            *(f"    {line}" for line in self._if_inside(parts)),
            "} else {",
            *(f"    {line}" for line in self._if_inside(stores)),
            "}",
        ]

    def _if_inside(self, statements: list[str]) -> list[str]:
        """Print statements for lanes that have channels."""
        if self.role.whole:
            return statements
        return ["if (inside) {", *(f"    {statement}" for statement in statements), "}"]

    # -- one edge -------------------------------------------------------------------------------

    def _edges(self) -> list[str]:
        """Print the edges of an iteration."""
        lines = []
        for j in range(self.edges_at_once):
            lines += ["{", *(f"    {line}" for line in self._edge(f"next[{j}]")), "}"]
            lines.append("if (++k == many) break;" if j + 1 < self.edges_at_once else "++k;")
        return lines

    def _edge(self, features: str) -> list[str]:
        """Print one edge.

        `features` names the registers that hold its features. Once they are read, those of the edge
        in the same place of the next iteration are loaded into them.
        """
        role = self.role
        value = "{0}[{1}]" if role.whole else "inside ? {0}[{1}] : Values()"
        later = f"k + {self.edges_at_once}"
        lines = [
            *(f"const Values feature{a} = {value.format(features, a)};" for a in range(self.dim)),
            *self._weights(),
            "if (k + 1 < many) load_row(record[k + 1]);",
            f"if ({later} < many) load_features({features}, record[{later}]);",
            f"const T* const m = m_batch + k * {self.table.stride};",
        ]
        chunks = sum_chunks(self.attributes)
        if not self.forward:
            lines.append("T along = 0;")
            lines += [f"T dy{n}[{size}] = {{}};" for n, (_, size) in enumerate(chunks)]
            if self.spec.wanted("x"):
                lines += [f"Values dx{a} = {{}};" for a in range(self.dim)]
        written: set[int] = set()  # attributes
        for i, path in enumerate(role.paths):
            lines += ["{", *(f"    {line}" for line in self._path(i, path, written)), "}"]
        if self.forward:
            return lines
        if self.spec.wanted("x"):
            lines.append(
                f"T* const to = p.dx + Long(record[k].to) * {self.problem.irreps_in1.dim} + "
                f"{role.in1.offset} + base;"
            )
            lines += self._if_inside(
                [
                    _store(f"to + {a * role.in1.mul}", f"dx{a}", not self.stores_inputs)
                    for a in range(self.dim)
                ]
            )
        lines.append("dy0[0] = along * record[k].slope;")
        for n, (start, size) in enumerate(chunks):
            count = min(size, self.attributes - start)
            store = f"part[k * {part_stride(self.attributes)} + {start} + {{at}}] = {{sum}};"
            lines += store_lane_sums(n, count, size, store)
        return lines

    def _sum(self, b: int) -> str:
        """Name of an edge's sum: an attribute's gradient."""
        for n, (start, size) in enumerate(sum_chunks(self.attributes)):
            if start <= b < start + size:
                return f"dy{n}[{b - start}]"
        raise AssertionError(b)

    def _path(self, number: int, path: LoweredPath, written: set[int]) -> list[str]:
        c = path.coupling
        nonzeros = [f"p{s}" for s in range(c.num_nonzeros)]
        channel = [
            f"const T wv = w{number}[c];",
            *([] if self.forward else [f"const T slope = slope{number}[c];"]),
            *(f"const T x{a} = feature{a}.v[c];" for a in range(c.dim_in)),
        ]
        if not self.forward:
            channel += [f"const T g{i} = g_{path.i_out}_{i}.v[c];" for i in range(c.dim_out)]
        channel += print_statements(uvu_sums(c, True, self.spec), declare="T", declared=nonzeros)
        for i, message in output_sums(c, True, self.spec).items():
            # added term by term: a message as an intermediate sum would cost one more addition
            channel += print_statements(
                Statement(f"o_{path.i_out}_{i}.v[c]", Sum.of([term]), add=True)
                for term in message.terms
            )
        if not self.forward:
            if self.spec.wanted("x"):
                channel += [f"dx{a}.v[c] += d{a};" for a in range(c.dim_in)]
            channel.append("along += dwv * slope;")
        lines = self.table.loads(path, "m")
        if self.forward:
            return [*lines, *_each_channel(channel)]
        lines += [f"T {name} = 0;" for name in nonzeros]
        lines += _each_channel(channel)
        for s, form in enumerate(self.lowered.forms(path)):
            for b, value in form.terms:
                if b:  # the constant's place is the length's
                    gradient = Sum.of([(value, (f"p{s}",))])
                    add = b in written
                    written.add(b)
                    lines += print_statements([Statement(self._sum(b), gradient, add)])
        return lines
