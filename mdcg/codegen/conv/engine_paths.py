"""C++ functions of the engine's convolution: one coupling, one chunk of channels, a block of edges.

A chunk is a few panels of 64 bytes of channels, so that what a chunk touches (weights, features and
their gradients, rows of the output) stays in the second-level cache while all paths of an input use
it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..common.lowering import Coupling, Entry

__all__ = ["EnginePaths"]


def _nonzero(entry: Entry) -> str:
    return f"splat(m[{entry.nonzero} * EDGES + e])"


def _step(entry: Entry) -> str:
    return "plus" if entry.sign > 0 else "minus"


class EnginePaths:
    """Emits the functions of each distinct coupling once."""

    def __init__(self, nonzeros_per_sum: int) -> None:
        self.nonzeros_per_sum = nonzeros_per_sum
        self._names: dict[Coupling, int] = {}
        self.texts: list[str] = []

    def number(self, coupling: Coupling) -> int:
        """Return the number at the end of the names of a coupling's functions."""
        if coupling not in self._names:
            number = len(self._names)
            self._names[coupling] = number
            self.texts.append("\n".join(self._forward(coupling, number)))
            self.texts.append("\n".join(self._backward(coupling, number)))
        return self._names[coupling]

    @staticmethod
    def _title(c: Coupling) -> str:
        return (
            f"// {c.dim_in} -> {c.dim_out} components, {len(c.entries)} entries, "
            f"{c.num_nonzeros} nonzeros"
        )

    def _forward(self, c: Coupling, number: int) -> list[str]:
        """Outputs of a run of edges are summed in registers."""
        return [
            self._title(c),
            "template <int S, int U>",
            f"static void forward_{number}(const Edges& edges, int from, int to, "
            "const T* __restrict m, const T* __restrict w) {",
            f"    constexpr int CH = U * A, N = pack_of<U>({c.dim_out});",
            "    for (int r = 0; r < edges.runs; ++r) {",
            "        for (int v = 0; v < CH; v += N * L) {",
            "            Pack<N> " + ", ".join(f"o{i} = {{}}" for i in range(c.dim_out)) + ";",
            "            for (int e = edges.run[r]; e < edges.run[r + 1]; ++e) {",
            "                const T* __restrict x = edges.x[e] + from + v;",
            "                const Pack<N> we = pack<N>(w + e * CH + v);",
            *(
                f"                const Pack<N> s{a} = mul(we, pack<N>(x + {a} * S));"
                for a in range(c.dim_in)
            ),
            *(
                f"                {_step(entry)}(o{entry.c}, {_nonzero(entry)}, s{entry.a});"
                for entry in c.entries
            ),
            "            }",
            "            T* o = edges.out[r] + to + v;",
            *(f"            add<N>(o + {i} * S, o{i});" for i in range(c.dim_out)),
            "        }",
            "    }",
            "}",
        ]

    def _backward(self, c: Coupling, number: int) -> list[str]:
        """Gradients of nonzeros are summed over lanes; weights become their gradients in place.

        With a table, gradients of weights are not kept: they are summed times their slopes.
        """
        return [
            "template <int S, int U, bool TABLE, bool DX>",
            f"static void backward_{number}(const Edges& edges, int from, int to, "
            "const T* __restrict m, T* __restrict w,",
            "        const T* __restrict slope, T* __restrict p, T* __restrict length, "
            "T* __restrict dx) {",
            "    (void)slope, (void)length, (void)dx;",
            f"    constexpr int CH = U * A, NONZEROS = {c.num_nonzeros}, N = pack_of<U>(1);",
            "    V sums[NONZEROS + TABLE][L];",
            "    for (int first = 0; first < edges.count; first += L) {",
            "        for (int i = 0; i < L; ++i) {",
            "            const int e = first + i;",
            "            if (e >= edges.count) {",
            "                for (int s = 0; s < NONZEROS + TABLE; ++s) sums[s][i] = V{};",
            "                continue;",
            "            }",
            "            const T* __restrict x = edges.x[e] + from;",
            "            const T* __restrict g = edges.g[e] + to;",
            f"            T scaled[{c.dim_in}][CH] __attribute__((aligned(64)));",
            "            V along = {};",
            "            (void)along;",
            *(f"            {line}" for line in self._pull(c)),
            *(f"            {line}" for line in self._nonzeros(c)),
            "            if constexpr (TABLE) sums[NONZEROS][i] = along;",
            "        }",
            "        for (int s = 0; s < NONZEROS; ++s)",
            "            store(p + s * EDGES + first, "
            "load(p + s * EDGES + first) + lane_sums(sums[s]));",
            "        if constexpr (TABLE)",
            "            store(length + first, load(length + first) + lane_sums(sums[NONZEROS]));",
            "    }",
            "}",
        ]

    @staticmethod
    def _pull(c: Coupling) -> list[str]:
        """Lines for ``q = M^T g``, gradients of the weight and of the features, ``s = w x``."""
        inputs = range(c.dim_in)
        lines = [
            "const Pack<N> we = pack<N>(w + e * CH + v);",
            "Pack<N> dw = {};",
            "Pack<N> " + ", ".join(f"q{a} = {{}}" for a in inputs) + ";",
        ]
        for i, entries in c.by_output().items():
            if entries:
                lines.append(f"const Pack<N> g{i} = pack<N>(g + {i} * S + v);")
            lines += [f"{_step(entry)}(q{entry.a}, {_nonzero(entry)}, g{i});" for entry in entries]
        for a in inputs:
            lines += [
                f"const Pack<N> x{a} = pack<N>(x + {a} * S + v);",
                f"plus(dw, x{a}, q{a});",
                f"put(scaled[{a}] + v, mul(we, x{a}));",
                f"if constexpr (DX) add<N>(dx + (e * {c.dim_in} + {a}) * CH + v, mul(we, q{a}));",
            ]
        lines += [
            "if constexpr (TABLE) along = total(along, dw, pack<N>(slope + e * CH + v));",
            "else put(w + e * CH + v, dw);",
        ]
        head = "for (int v = 0; v < CH; v += N * L) {"
        return [head, *(f"    {line}" for line in lines), "}"]

    def _nonzeros(self, c: Coupling) -> list[str]:
        """Lines that sum ``s_a g_c`` over the chunk, a few nonzeros at a time."""
        order: list[int] = []
        for entry in sorted(c.entries, key=lambda entry: (entry.c, entry.a)):
            if entry.nonzero not in order:
                order.append(entry.nonzero)
        lines: list[str] = []
        for start in range(0, len(order), self.nonzeros_per_sum):
            lines += self._group(c, order[start : start + self.nonzeros_per_sum])
        return lines

    @staticmethod
    def _group(c: Coupling, nonzeros: Iterable[int]) -> list[str]:
        nonzeros = list(nonzeros)
        entries = sorted(
            (entry for entry in c.entries if entry.nonzero in nonzeros), key=lambda e: (e.c, e.a)
        )
        lines = [f"const V s{a} = load(scaled[{a}] + v);" for a in sorted({e.a for e in entries})]
        known = set()
        for entry in entries:
            if entry.c not in known:
                known.add(entry.c)
                lines.append(f"const V g{entry.c} = load(g + {entry.c} * S + v);")
            sign = "+" if entry.sign > 0 else "-"
            lines.append(f"p{entry.nonzero} {sign}= s{entry.a} * g{entry.c};")
        return [
            "{",
            "    V " + ", ".join(f"p{nonzero} = {{}}" for nonzero in nonzeros) + ";",
            "    MDCG_UNROLL(8)",
            "    for (int v = 0; v < CH; v += L) {",
            *(f"        {line}" for line in lines),
            "    }",
            *(f"    sums[{nonzero}][i] = p{nonzero};" for nonzero in nonzeros),
            "}",
        ]
