"""C++ functions of the engine's convolution: one coupling, one chunk of channels, a block of edges.

A chunk is a few panels of 64 bytes of channels. So its weights, features, gradients and rows of the
output stay in the second-level cache while all paths of an input block use them.
"""

from __future__ import annotations

import math

from ..common.lowering import Coupling, Entry

__all__ = ["EnginePaths"]

# Most vectors that a loop of the backward pass keeps: sums of nonzeros, and s and q of each input
# component. More sums need more loops. With 26 or 30, Nequix takes more time on AVX-512.
LIVE_VECTORS = 22


def _nonzero(entry: Entry) -> str:
    return f"splat(m[{entry.nonzero} * EDGES + e])"


def _step(entry: Entry) -> str:
    return "plus" if entry.sign > 0 else "minus"


class EnginePaths:
    """Emits the functions of each distinct coupling once."""

    def __init__(self) -> None:
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
        """Sum the outputs of a run of edges in registers."""
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
        """Sum gradients of nonzeros over lanes, and overwrite weights by their gradients.

        With a table, the gradients of weights times the table's slopes are summed instead.
        """
        return [
            "template <int S, int U, bool TABLE, bool DX>",
            f"static void backward_{number}(const Edges& edges, int from, int to, "
            "const T* __restrict m, T* __restrict w,",
            "        const T* __restrict slope, T* __restrict p, T* __restrict length, "
            "T* __restrict dx) {",
            "    (void)slope, (void)length, (void)dx;",
            f"    constexpr int CH = U * A, NONZEROS = {c.num_nonzeros};",
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
            "            V along = {};",
            "            (void)along;",
            *(f"            {line}" for line in self._edge(c)),
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

    def _edge(self, c: Coupling) -> list[str]:
        """Return the lines of an edge: loops over channels, each for some of the nonzeros."""
        parts = max(1, math.ceil(c.num_nonzeros / max(4, LIVE_VECTORS - 2 * c.dim_in)))
        size = math.ceil(c.num_nonzeros / parts)
        lines = []
        for part in range(parts):
            nonzeros = range(part * size, min((part + 1) * size, c.num_nonzeros))
            lines += [
                "{",
                *(f"    V p{nonzero} = {{}};" for nonzero in nonzeros),
                "    for (int v = 0; v < CH; v += L) {",
                *(f"        {line}" for line in self._channels(c, nonzeros, part + 1 == parts)),
                "    }",
                *(f"    sums[{nonzero}][i] = p{nonzero};" for nonzero in nonzeros),
                "}",
            ]
        return lines

    @staticmethod
    def _channels(c: Coupling, nonzeros: range, last: bool) -> list[str]:
        """Return lines for one vector of channels of an edge.

        Every loop reads the weights. The `last` loop also computes ``q = M^T g`` and from it the
        gradients of features and weight. Without a table it overwrites the weight by its gradient,
        so no loop may follow.
        """
        inputs = range(c.dim_in)
        lines = ["const V we = load(w + e * CH + v);"]
        for a in inputs:
            lines.append(f"const V x{a} = load(x + {a} * S + v), s{a} = we * x{a};")
            lines += [f"V q{a} = {{}};"] if last else []
        for i, entries in c.by_output().items():
            if entries and (last or any(entry.nonzero in nonzeros for entry in entries)):
                lines.append(f"const V g{i} = load(g + {i} * S + v);")
            for entry in entries:
                sign = "+" if entry.sign > 0 else "-"
                if last:
                    lines.append(f"q{entry.a} {sign}= {_nonzero(entry)} * g{i};")
                if entry.nonzero in nonzeros:
                    lines.append(f"p{entry.nonzero} {sign}= s{entry.a} * g{i};")
        if not last:
            return lines
        lines.append("const V dw = " + " + ".join(f"x{a} * q{a}" for a in inputs) + ";")
        for a in inputs:
            to = f"dx + (e * {c.dim_in} + {a}) * CH + v"
            lines.append(f"if constexpr (DX) store({to}, load({to}) + we * q{a});")
        return [
            *lines,
            "if constexpr (TABLE) along += dw * load(slope + e * CH + v);",
            "else store(w + e * CH + v, dw);",
        ]
