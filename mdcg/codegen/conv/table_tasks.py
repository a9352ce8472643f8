"""CUDA text of the forward pass of one task: a warp's loop over the edges of a receiver."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...plan.device import WARP
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredPath, LoweredProblem, NonzeroGroup
from ..common.spec import KernelSpec
from ..common.uvu import output_sums, uvu_sums
from .warp_tasks import TaskSet, WarpTask

__all__ = [
    "ForwardTaskWriter",
    "NonzeroTable",
    "TableTaskWriter",
    "each_channel",
    "share_groups",
    "store",
    "store_nonzeros",
]


@dataclass(frozen=True)
class NonzeroTable:
    """Where the nonzeros of a kernel's groups lie in the row of an edge, in units of T."""

    # from a group's first nonzero to its place; every group starts at a multiple of 16 bytes
    starts: dict[int, int]
    # distance of the rows of two edges: lanes that write rows in turn meet few bank conflicts
    stride: int
    quad: int  # items of 16 bytes

    @classmethod
    def of(cls, lowered: LoweredProblem, groups: tuple[int, ...], quad: int) -> NonzeroTable:
        """Lay out groups by position."""
        starts, total = {}, 0
        for i in groups:
            group = lowered.groups[i]
            starts[group.first] = total
            total += -(-len(group.forms) // quad) * quad
        return cls(starts, total + (quad if total % (2 * quad) == 0 else 0), quad)

    def loads(self, path: LoweredPath, name: str) -> list[str]:
        """Print the loads of a path's nonzeros from row ``name`` into ``name0``, ``name1``, ..."""
        lines = []
        start = self.starts.get(path.first_nonzero, 0)
        for first in range(0, path.coupling.num_nonzeros, self.quad):
            lines.append(f"const Quad {name}q{first} = *(const Quad*)({name} + {start + first});")
            lines += [
                f"const T {name}{first + i} = {name}q{first}.v[{i}];"
                for i in range(min(self.quad, path.coupling.num_nonzeros - first))
            ]
        return lines


def share_groups(lowered: LoweredProblem, kernel: TaskSet, warps: int) -> list[list[int]]:
    """Return positions of the nonzero groups that each warp evaluates, of about equal work."""
    work: list[list[int]] = [[] for _ in range(warps)]
    loads = [0] * warps
    cost = {i: sum(len(f.terms) + 1 for f in lowered.groups[i].forms) for i in kernel.groups}
    for i in sorted(kernel.groups, key=lambda i: (-cost[i], i)):
        least = loads.index(min(loads))
        work[least].append(i)
        loads[least] += cost[i]
    return work


def store_nonzeros(
    group: NonzeroGroup, table: NonzeroTable, quad: int, attribute: str
) -> list[str]:
    """Print the nonzeros of a group into row ``m``; ``attribute`` is the format of a name of y."""
    statements = [
        Statement(f"m{n}", Sum.of((value, (attribute.format(b),)) for b, value in form.terms))
        for n, form in enumerate(group.forms)
    ]
    printed = print_statements(statements, declare="const T")
    lines = ["        {", *(f"            {line}" for line in printed)]
    for n in range(0, len(group.forms), quad):
        values = ", ".join(f"m{j}" if j < len(group.forms) else "T(0)" for j in range(n, n + quad))
        start = table.starts[group.first] + n
        lines.append(f"            *(Quad*)(m + {start}) = {{{{{values}}}}};")
    return [*lines, "        }"]


def each_channel(statements: Iterable[str]) -> list[str]:
    """Print statements for each channel ``c`` of a lane.

    Parameters
    ----------
    statements : iterable of str

    Returns
    -------
    list of str
    """
    return [
        "#pragma unroll",
        "for (int c = 0; c < CHANNELS; ++c) {",
        *(f"    {statement}" for statement in statements),
        "}",
    ]


def store(to: str, values: str, add: bool) -> str:
    """Print a statement that writes the channels of a lane.

    Parameters
    ----------
    to : str
        Address of the first channel.
    values : str
        What to write.
    add : bool
        Whether to add to what is there.

    Returns
    -------
    str
    """
    return f"*(Values*)({to}) {'+=' if add else '='} {values};"


class TableTaskWriter:
    """What both passes of a task print.

    Parameters
    ----------
    lowered : LoweredProblem
    spec : KernelSpec
        Forward or backward; with or without gradients of x.
    task : WarpTask
        The multiplicity of its input block is a multiple of the channels of a lane.
    table : NonzeroTable
    batch : int
        Edges per evaluation of the path matrices.
    warps : int
        Of the block, for each share of a batch or each warp_group.
    shares : int
        Parts into which a batch is divided.
    """

    def __init__(
        self,
        lowered: LoweredProblem,
        spec: KernelSpec,
        task: WarpTask,
        table: NonzeroTable,
        *,
        batch: int,
        warps: int,
        shares: int,
    ) -> None:
        self.lowered, self.spec, self.task, self.table = lowered, spec, task, table
        self.problem = lowered.problem
        self.batch, self.warps, self.shares = batch, warps, shares
        self.dim = task.in1.ir.dim

    def head(self, name: str, parameters: str) -> list[str]:
        """Return the start of the task's function: its channels and where polynomials go."""
        task, width = self.task, self.problem.irreps_in1.dim
        names = ", ".join(f"a{i}[Column::PAIRS]" for i in range(len(task.paths)))
        return [
            f"// {task.in1} by {task.chunks} warps, {len(task.paths)} paths",
            f"MDCG_INLINE void {name}(const Arguments& p, PrefetchedEdge& ahead, Record* records, "
            f"T* matrices, {parameters}, int lane, int warp, int place, int chunk) {{",
            f"    constexpr int CHANNELS = {task.channels};",
            "    typedef Vec<CHANNELS> Values;",
            *(f"    {line}" for line in self._channels()),
            "    const Two* const table = (const Two*)p.table + base;",
            f"    Pairs<CHANNELS> {names};",
            "    int loaded_row = -1;  // of the table",
            f"    const T* const features = kept(p.x + {task.in1.offset} + base);",
            "    const auto load_features = [&](auto& to, int sender) {",
            f"        const T* const x = features + Long(sender) * {width};",
            *(
                f"        to[{a}] = *(const Values*)(x + {a * task.in1.mul});"
                for a in range(self.dim)
            ),
            "    };",
        ]

    def _channels(self) -> list[str]:
        mul, channels = self.task.in1.mul, self.task.channels
        first = f"chunk * {WARP * channels} + lane * {channels}"
        if self.task.whole:
            return [f"const int base = {first};"]
        return [
            f"const bool inside = {first} < {mul};",
            f"const int base = min({first}, {mul - channels});",
        ]

    def place(self, i_out: int, component: int) -> int:
        """Return where a component begins in a row of the output."""
        block = self.problem.irreps_out[i_out]
        return block.offset + component * block.mul

    def if_inside(self, statements: list[str]) -> list[str]:
        """Print statements for lanes that have channels."""
        if self.task.whole:
            return statements
        return ["if (inside) {", *(f"    {statement}" for statement in statements), "}"]

    def channels_of(self, values: str) -> str:
        """Print the values of a lane, zeros if it has no channels."""
        return values if self.task.whole else f"inside ? {values} : Values()"

    def table_row(self, row: str, name: str) -> str:
        """Print the address of a row of the table, with a name."""
        width = self.problem.weight_numel
        return f"const Two* const {name} = table + Long({row}) * ({width} * Column::PAIRS);"

    def load_polynomial(self, number: int, row: str) -> list[str]:
        """Print the load of a path's polynomials from the address of a row of the table."""
        width, path = self.problem.weight_numel, self.task.paths[number]
        return [
            "#pragma unroll",
            "for (int k = 0; k < Column::PAIRS; ++k)",
            f"    a{number}[k] = *(const Pairs<CHANNELS>*)({row} + k * {width} + "
            f"{path.weight_offset});",
        ]


class ForwardTaskWriter(TableTaskWriter):
    """Prints the function of one task of the forward pass.

    Parameters
    ----------
    *arguments
        See :class:`TableTaskWriter`.
    stored_outputs : set of int
        Output blocks that no kernel before has written: stored, others are added to.
    edges_at_once : int
        Edges that an iteration of the loop takes, 1 or 2. Each has registers of its own for
        features, which are loaded one iteration before they are needed.
    sum_items : int
        Shared memory of a warp for its sums. 0: a receiver has one warp_group of warps.
    group_items : int
        Shared memory of a warp_group.
    **options
        See :class:`TableTaskWriter`.
    """

    def __init__(
        self,
        *arguments: Any,
        stored_outputs: frozenset[int],
        edges_at_once: int,
        sum_items: int,
        group_items: int,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.stored_outputs, self.edges_at_once = stored_outputs, edges_at_once
        self.sum_items, self.group_items = sum_items, group_items

    def function(self, name: str, prefix: str) -> str:
        """Return the task's function; ``prefix`` names the helpers of its kernel."""
        batch, stride = self.batch, self.table.stride
        paths, at_once = range(len(self.task.paths)), range(self.edges_at_once)
        records = batch + self.edges_at_once
        lines = [
            *self.head(name, "Long row, int begin, int count"),
            *(f"    Values {name} = {{}};" for name, _ in self._outputs()),
            f"    Values next[{self.edges_at_once}][{self.dim}];  // features of edges to come",
            "    const auto load_row = [&](int row) {  // roughly in order of length",
            "        if (row == loaded_row) return;",
            f"        {self.table_row('row', 'from')}",
            *(f"        {line}" for i in paths for line in self.load_polynomial(i, "from")),
            "        loaded_row = row;",
            "    };",
            "    int buffer = 0, turn = 0;",
            f"    for (int first = 0; first < count; first += {batch}) {{",
            f"        const int many = min({batch}, count - first);",
            f"        const bool more = first + {batch} < count;",
            f"        turn = turn + 1 < {self.warps} ? turn + 1 : 0;",
            "        if (more) "
            f"fetch(p, ahead, begin, first + {batch} + lane, count, {batch}, lane, warp == turn);",
            f"        const Record* const record = records + buffer * {records};",
            f"        const T* const m_batch = matrices + buffer * {batch * stride};",
            f"        load_row(record[{batch}].row);",
            *(f"        load_features(next[{j}], record[{batch + j}].sender);" for j in at_once),
            "#pragma unroll 1",
            f"        for (int k = 0; k < many; k += {self.edges_at_once}) {{",
            *(
                f"            {line}"
                for j in at_once
                for line in (*(["if (k + 1 == many) break;"] if j else []), *self._edge(j))
            ),
            "        }",
            f"        if (more) {prefix}_make(p, ahead, row, records + (buffer ^ 1) * {records}, "
            f"matrices + (buffer ^ 1) * {batch * stride}, first + {batch} + lane < count, lane, "
            "warp, warp == turn);",
            "        __syncthreads();",
            "        buffer ^= 1;",
            "    }",
            *(f"    {line}" for line in self._store_outputs()),
        ]
        return "\n".join([*lines, "}"])

    def _outputs(self) -> list[tuple[str, int]]:
        """Names of the sums of the outputs, and where they begin in a row."""
        return [
            (f"o_{i_out}_{i}", self.place(i_out, i))
            for i_out, block in self.task.outputs.items()
            for i in range(block.ir.dim)
        ]

    def _store_outputs(self) -> list[str]:
        stores = [
            store(f"out + {self.place(i_out, i)}", f"o_{i_out}_{i}", add)
            for i_out, block in self.task.outputs.items()
            for add in [i_out not in self.stored_outputs]
            for i in range(block.ir.dim)
        ]
        return [
            *(self._add_warp_groups() if self.sum_items else ()),
            f"T* const out = p.out + row * {self.problem.irreps_out.dim} + base;",
            *self.if_inside(stores),
        ]

    def _add_warp_groups(self) -> list[str]:
        """Print the sum over warp_groups, in shared memory that held the batches.

        Numbers of edges differ by at most one, so that a warp group may have one batch less.
        It then calls ``__syncthreads`` once more. The number of the warp group is found again here,
        so that it takes no register in the loop over edges.
        """
        threads, batch = self.warps * WARP, self.batch
        places = {
            name: i * WARP * self.task.channels for i, (name, _) in enumerate(self._outputs())
        }
        return [
            f"if (blockDim.x > {threads}) {{",
            f"    const int warp_group = int(threadIdx.x) / {threads};",
            f"    const int warp_groups = int(blockDim.x) / {threads}, active = p.num_active[row];",
            "    const int longest = (active + warp_groups - 1) / warp_groups;",
            f"    const int batches = (longest + {batch - 1}) / {batch};",
            f"    if ((count + {batch - 1}) / {batch} < batches) __syncthreads();",
            f"    T* const sums = (T*)records + (place * {self.sum_items} + lane * CHANNELS);",
            "    if (warp_group > 0) {",
            *(f"        *(Values*)(sums + {at}) = {name};" for name, at in places.items()),
            "    }",
            "    __syncthreads();",
            "    if (warp_group > 0) return;",
            "    for (int other = 1; other < warp_groups; ++other) {",
            f"        const T* const more = sums + other * {self.group_items};",
            *(f"        {name} += *(const Values*)(more + {at});" for name, at in places.items()),
            "    }",
            "}",
        ]

    def _edge(self, number: int) -> list[str]:
        """Print one edge of an iteration.

        Its features are in registers. Once they are read, those of the edge in the same place of
        the next iteration are loaded into them, and the polynomials of the next edge. The record
        names both; where there are no more edges, it names the last one.
        """
        paths = self.task.paths
        features = f"next[{number}]"
        lines = [
            f"const Record here = record[k + {number}];",
            *(
                f"const Values feature{a} = {self.channels_of(f'{features}[{a}]')};"
                for a in range(self.dim)
            ),
            *(f"T w{i}[CHANNELS], slope{i};" for i in range(len(paths))),
            *each_channel(
                f"evaluate(a{i}, c, here.z, w{i}[c], slope{i});" for i in range(len(paths))
            ),
            "load_row(here.row);",
            f"load_features({features}, here.sender);",
            f"const T* const m = m_batch + (k + {number}) * {self.table.stride};",
        ]
        for i, path in enumerate(paths):
            lines += ["{", *(f"    {line}" for line in self._path(i, path)), "}"]
        return ["{", *(f"    {line}" for line in lines), "}"]

    def _path(self, number: int, path: LoweredPath) -> list[str]:
        c = path.coupling
        channel = [
            f"const T wv = w{number}[c];",
            *(f"const T x{a} = feature{a}.v[c];" for a in range(c.dim_in)),
            *print_statements(uvu_sums(c, True, self.spec), declare="T"),
        ]
        for i, message in output_sums(c, True, self.spec).items():
            # added term by term: a message as an intermediate sum would cost one more addition
            channel += print_statements(
                Statement(f"o_{path.i_out}_{i}.v[c]", Sum.of([term]), add=True)
                for term in message.terms
            )
        return [*self.table.loads(path, "m"), *each_channel(channel)]
