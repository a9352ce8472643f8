"""CUDA text of the backward pass of one task: a warp's loop over pairs of a group of receivers.

A pair is an edge and its reverse: both have the same weights, and harmonics that differ in sign at
most. One end of a pair is a receiver of the group, whose features and gradients are in shared
memory. Those of the other end, the sender, stay in registers for all its pairs with the group,
which therefore write one row of gradients for it. An edge without a reverse is half a pair.
"""

from __future__ import annotations

import math
from typing import Any

from ...plan.device import WARP
from ..common.emit import power_of_two, store_lane_sums
from ..common.expression import Statement, Sum, print_statements
from ..common.lowering import LoweredPath
from ..common.uvu import uvu_sums
from .table_tasks import TableTaskWriter, each_channel, store
from .warp_tasks import WarpTask

__all__ = ["BackwardTaskWriter", "held_values", "part_stride", "sum_chunks"]


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


def held_values(task: WarpTask) -> int:
    """Return how many values of a channel a receiver of the group has in shared memory.

    Parameters
    ----------
    task : WarpTask

    Returns
    -------
    int
        Components of the outputs' gradients and of the features.
    """
    return sum(block.ir.dim for block in task.outputs.values()) + task.in1.ir.dim


class BackwardTaskWriter(TableTaskWriter):
    """Prints the function of one task of the backward pass.

    Parameters
    ----------
    *arguments
        See :class:`TableTaskWriter`.
    stream : int
        Of the kernel: which gradients of the edges' vectors it adds to.
    stores_inputs : bool
        Whether no kernel before has written gradients of the task's block of features: they are
        stored, others are added to.
    share_sums : int
        Items of shared memory in which a share sums gradients of receivers.
    held : bool
        Whether shared memory has room for what the group's receivers have; else it is read from
        device memory for each pair.
    **options
        See :class:`TableTaskWriter`.
    """

    def __init__(
        self,
        *arguments: Any,
        stream: int,
        stores_inputs: bool,
        share_sums: int,
        held: bool,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.de = f"p.de + {stream} * p.n_de" if stream else "p.de"
        self.stores_inputs, self.share_sums, self.held = stores_inputs, share_sums, held
        self.attributes = self.problem.irreps_in2.dim
        self.wants_x = self.spec.wanted("x")
        # names of a receiver's gradients, and where they begin in a row
        self.gradients = {
            f"{i_out}_{i}": self.place(i_out, i)
            for i_out, block in self.task.outputs.items()
            for i in range(block.ir.dim)
        }

    def function(self, name: str, prefix: str) -> str:
        """Return the task's function; ``prefix`` names the helpers of its kernel."""
        batch, stride, row = self.batch, self.table.stride, part_stride(self.attributes)
        per, size = batch // self.shares, self.warps * batch * row
        paths = range(len(self.task.paths))
        to_vectors = (
            f"to_vectors<{self.warps}>(p, {self.de}, parts + (buffer ^ 1) * {size}, "
            f"records + (buffer ^ 1) * {batch}, lane);"
        )
        lines = [
            *self.head(
                name, "T* parts, T* held_memory, T* sums_memory, Long group, EdgeSlice mine"
            ),
            f"    const int share = warp / {self.warps}, receivers = group_size(p, group);",
            "    const Long first_receiver = p.n_first + group * p.n_group;",
            *(f"    {line}" for line in self._hold()),
            "    int loaded_far = -1;",
            f"    Values {', '.join(f'h_{name}' for name in self.gradients)};  // of the sender",
            f"    Values next[{self.dim}];  // features of the sender to come",
            *(f"    {line}" for line in self._flush()),
            f"    const int count = __shfl_sync(~0u, mine.count, share * {per});",
            "    int buffer = 0, turn = 0;",
            f"    for (int first = 0; first < mine.longest; first += {per}) {{",
            f"        const int many = min({per}, count - first);",
            f"        const int later = first + {per} + lane % {per};",
            f"        const bool more = first + {per} < mine.longest;",
            f"        turn = turn + 1 < {self.warps * self.shares} ? turn + 1 : 0;",
            f"        if (more) fetch(p, ahead, mine.begin, later, mine.count, {per}, lane, "
            "warp == turn);",
            f"        const Record* const record = records + buffer * {batch} + share * {per};",
            f"        const T* const m_batch = matrices + buffer * {batch * stride} + "
            f"share * {per * stride};",
            f"        const int before = later - {2 * per};",
            f"        if (first > 0 && warp == turn && before < mine.count) {to_vectors}",
            f"        T* const part = parts + buffer * {size} + place * {batch * row} + "
            f"share * {per * row};",
            "        if (many > 0) {",
            "            load_features(next, record[0].sender);",
            "            if (record[0].row != loaded_row) {",
            f"                {self.table_row('record[0].row', 'first_polynomials')}",
            *(
                f"                {line}"
                for i in paths
                for line in self.load_polynomial(i, "first_polynomials")
            ),
            "                loaded_row = record[0].row;",
            "            }",
            "            if (record[0].partner >= 0 && record[0].partner != loaded_far) {",
            f"                {self._far_row('record[0].partner', 'first_gradients')}",
            *(
                f"                {line}"
                for i in self.task.outputs
                for line in self._load_far(i, "first_gradients")
            ),
            "                loaded_far = record[0].partner;",
            "            }",
            "        }",
            "#pragma unroll 1",
            "        for (int k = 0; k < many; ++k) {",
            *(f"            {line}" for line in self._pair()),
            "        }",
            f"        if (more) {prefix}_make(p, ahead, group, records + (buffer ^ 1) * {batch}, "
            f"matrices + (buffer ^ 1) * {batch * stride}, later < mine.count, lane, warp, "
            "warp == turn);",
            "        __syncthreads();",
            "        buffer ^= 1;",
            "    }",
            *(f"    {line}" for line in self._finish()),
            f"    const int last = (mine.longest - 1) / {per} * {per} + lane % {per};",
            f"    if (mine.longest > 0 && warp == turn && last < mine.count) {to_vectors}",
        ]
        return "\n".join([*lines, "}"])

    # -- receivers of the group -------------------------------------------------------------------

    def _hold(self) -> list[str]:
        """Print how shared memory gets values of receivers, and zeros for their gradients."""
        lines = []
        if self.held:
            lines += [
                f"constexpr int VALUES = {held_values(self.task)};",
                "Values* const held = (Values*)held_memory + lane;",
                f"for (int s = share; s < receivers; s += {self.shares}) {{",
                "    Values* const to = held + s * (VALUES * 32);",
                *(f"    {line}" for line in self._rows_of("first_receiver + s")),
                *(
                    f"    to[{i} * 32] = {value};"
                    for i, value in enumerate([*self._gradients(), *self._features()])
                ),
                "}",
            ]
        if self.wants_x:
            lines += [
                "Values* const sums = (Values*)sums_memory + lane;",
                f"for (int i = 0; i < receivers * {self.dim}; ++i) sums[i * 32] = Values();",
            ]
        return [*lines, "__syncthreads();"]

    def _rows_of(self, receiver: str) -> list[str]:
        x = receiver if self.wants_x else f"p.types[{receiver}]"
        return [
            f"const T* const g = p.g + ({receiver}) * {self.problem.irreps_out.dim} + base;",
            f"const T* const x = features + Long({x}) * {self.problem.irreps_in1.dim};",
        ]

    def _gradients(self) -> list[str]:
        return [f"*(const Values*)(g + {place})" for place in self.gradients.values()]

    def _features(self) -> list[str]:
        mul = self.task.in1.mul
        return [self.channels_of(f"*(const Values*)(x + {a * mul})") for a in range(self.dim)]

    def _own(self) -> tuple[list[str], dict[str, str], list[str]]:
        """Return statements, and expressions for gradients and features of a pair's receiver."""
        if not self.held:
            rows = self._rows_of("first_receiver + record[k].local_receiver")
            return rows, dict(zip(self.gradients, self._gradients(), strict=True)), self._features()
        values = [f"own[{i} * 32]" for i in range(held_values(self.task))]
        return (
            ["const Values* const own = held + record[k].local_receiver * (VALUES * 32);"],
            dict(zip(self.gradients, values, strict=False)),
            values[len(self.gradients) :],
        )

    def _finish(self) -> list[str]:
        """Print the stores of the last sender's row and of the gradients of the receivers."""
        if not self.wants_x:
            return []
        dim, width = self.dim, self.problem.irreps_in1.dim
        return [
            "if (current >= 0) flush();",
            "__syncthreads();",
            f"for (int s = share; s < receivers; s += {self.shares}) {{",
            "    const Long row = (first_receiver + s) * PARTS + blockIdx.x % unsigned(PARTS);",
            f"    T* const to = p.own + row * {width} + {self.task.in1.offset} + base;",
            f"    const T* from = sums_memory - share * {self.share_sums};",
            *(f"    Values total{a} = {{}};" for a in range(dim)),
            f"    for (int i = 0; i < {self.shares}; ++i, from += {self.share_sums}) {{",
            *(
                f"        total{a} += ((const Values*)from)[lane + (s * {dim} + {a}) * 32];"
                for a in range(dim)
            ),
            "    }",
            *(f"    {line}" for line in self._store_inputs("total")),
            "}",
        ]

    def _store_inputs(self, values: str) -> list[str]:
        mul = self.task.in1.mul
        return self.if_inside(
            [
                store(f"to + {a * mul}", f"{values}{a}", not self.stores_inputs)
                for a in range(self.dim)
            ]
        )

    # -- senders ----------------------------------------------------------------------------------

    def _flush(self) -> list[str]:
        if not self.wants_x:
            return []
        width = self.problem.irreps_in1.dim
        return [
            f"Values {', '.join(f'dx{a}' for a in range(self.dim))};  // of the sender",
            "int current = -1;  // its row",
            "const auto flush = [&]() {",
            f"    T* const to = p.dx + Long(current) * {width} + {self.task.in1.offset} + base;",
            *(f"    {line}" for line in self._store_inputs("dx")),
            "};",
        ]

    def _far_row(self, partner: str, name: str) -> str:
        return (
            f"const T* const {name} = p.g + Long({partner}) * {self.problem.irreps_out.dim} + base;"
        )

    def _load_far(self, i_out: int, row: str) -> list[str]:
        return [
            f"h_{i_out}_{i} = *(const Values*)({row} + {self.place(i_out, i)});"
            for i in range(self.problem.irreps_out[i_out].ir.dim)
        ]

    # -- one pair ---------------------------------------------------------------------------------

    def _pair(self) -> list[str]:
        """Print a pair. What the next one needs is loaded as soon as registers are free."""
        rows, gradients, features = self._own()
        chunks = sum_chunks(self.attributes)
        lines = [
            *(
                f"const Values feature{a} = {self.channels_of(f'next[{a}]')};"
                for a in range(self.dim)
            ),
            "const T z = record[k].z;",
            "const Record& following = record[min(k + 1, many - 1)];",
            "const int next_row = following.row, next_far = following.partner;",
            "const bool new_row = next_row != loaded_row;",
            "const bool new_far = next_far >= 0 && next_far != loaded_far;",
            "loaded_row = next_row;",
            "if (new_far) loaded_far = next_far;",
            self.table_row("next_row", "next_polynomials"),
            self._far_row("next_far", "next_gradients"),
            "load_features(next, following.sender);",
            *rows,
            f"const T* const m = m_batch + k * {self.table.stride};",
            "T along = 0;",
            *(f"T dy{n}[{size}] = {{}};" for n, (_, size) in enumerate(chunks)),
        ]
        if self.wants_x:
            lines += [
                "if (record[k].to != current) {",
                "    if (current >= 0) flush();",
                "    current = record[k].to;",
                *(f"    dx{a} = Values();" for a in range(self.dim)),
                "}",
            ]
        both = [f"const Values own{a} = {value};" for a, value in enumerate(features)]
        after = []
        if self.wants_x:
            both += [
                f"Values* const sum = sums + record[k].local_receiver * {self.dim * 32};",
                *(f"Values own_d{a} = sum[{a * 32}];" for a in range(self.dim)),
            ]
            after = [f"sum[{a * 32}] = own_d{a};" for a in range(self.dim)]
        lines += [
            # all lanes have the same pair, which the compiler cannot see
            "if (__any_sync(~0u, record[k].partner >= 0)) {",
            *(f"    {line}" for line in [*both, *self._paths(gradients, True), *after]),
            "} else {",
            *(f"    {line}" for line in self._paths(gradients, False)),
            "}",
            "dy0[0] = along * record[k].slope;",
        ]
        for n, (start, size) in enumerate(chunks):
            count = min(size, self.attributes - start)
            text = f"part[k * {part_stride(self.attributes)} + {start} + {{at}}] = {{sum}};"
            lines += store_lane_sums(n, count, size, text)
        return lines

    def _paths(self, gradients: dict[str, str], reverse: bool) -> list[str]:
        """Print all paths of an edge and, if there is one, of its reverse."""
        lines = []
        written: set[int] = set()  # attributes
        paths = self.task.paths
        last_use = {path.i_out: i for i, path in enumerate(paths)}
        for i, path in enumerate(paths):
            own = [
                f"const Values g_{path.i_out}_{k} = {gradients[f'{path.i_out}_{k}']};"
                for k in range(path.out.ir.dim)
            ]
            body = [
                f"T w{i}[CHANNELS], slope{i}[CHANNELS];",
                *each_channel([f"evaluate(a{i}, c, z, w{i}[c], slope{i}[c]);"]),
                "if (new_row) {",
                *(f"    {line}" for line in self.load_polynomial(i, "next_polynomials")),
                "}",
                *own,
                *self._path(i, path, written, reverse),
            ]
            if last_use[path.i_out] == i:
                body += [
                    "if (new_far) {",
                    *(f"    {line}" for line in self._load_far(path.i_out, "next_gradients")),
                    "}",
                ]
            lines += ["{", *(f"    {line}" for line in body), "}"]
        return lines

    def _path(self, number: int, path: LoweredPath, written: set[int], reverse: bool) -> list[str]:
        nonzeros = [f"p{s}" for s in range(path.coupling.num_nonzeros)]
        forms = self.lowered.forms(path)
        degree = math.isqrt(max(b for form in forms for b, _ in form.terms))
        channel = self._edge(number, path, "", "feature", "g", "dx")
        if reverse:  # harmonics of odd degrees change sign
            sign = "-" if degree % 2 else ""
            back = self._edge(number, path, sign, "own", "h", "own_d")
            channel = ["{", *(f"    {line}" for line in channel), "}"]
            channel += ["{", *(f"    {line}" for line in back), "}"]
        lines = [
            *self.table.loads(path, "m"),
            *(f"T {name} = 0;" for name in nonzeros),
            *each_channel(channel),
        ]
        for s, form in enumerate(forms):
            for b, value in form.terms:
                if b:  # the constant's place is the length's
                    gradient = Sum.of([(value, (f"p{s}",))])
                    add = b in written
                    written.add(b)
                    lines += print_statements([Statement(self._sum(b), gradient, add)])
        return lines

    def _edge(
        self, number: int, path: LoweredPath, sign: str, x: str, g: str, dx: str
    ) -> list[str]:
        """Print an edge of a pair in a channel.

        `x` and `g` name the features of its sender and the gradients of its receiver, `dx` the
        gradients of the features; `sign` is that of its harmonics.
        """
        c = path.coupling
        nonzeros = [f"p{s}" for s in range(c.num_nonzeros)]
        lines = [
            f"const T wv = {sign}w{number}[c];",
            f"const T slope = {sign}slope{number}[c];",
            *(f"const T x{a} = {x}{a}.v[c];" for a in range(c.dim_in)),
            *(f"const T g{i} = {g}_{path.i_out}_{i}.v[c];" for i in range(c.dim_out)),
            *print_statements(uvu_sums(c, True, self.spec), declare="T", declared=nonzeros),
        ]
        if self.wants_x:
            lines += [f"{dx}{a}.v[c] += d{a};" for a in range(c.dim_in)]
        return [*lines, "along += dwv * slope;"]

    def _sum(self, b: int) -> str:
        """Name of a pair's sum: an attribute's gradient."""
        for n, (start, size) in enumerate(sum_chunks(self.attributes)):
            if start <= b < start + size:
                return f"dy{n}[{b - start}]"
        raise AssertionError(b)
