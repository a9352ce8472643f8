"""Convolution problems with all paths that the irreps allow."""

from __future__ import annotations

from mdcg.problem import ConvProblem, Irreps


def allowed(in1: str, in2: str, out: str) -> list[tuple[int, int, int]]:
    """Return the paths from blocks of in1 and in2 to blocks of out with as many channels."""
    one, two, three = (Irreps.parse(text) for text in (in1, in2, out))
    return [
        (i, j, k)
        for i, a in enumerate(one)
        for j, b in enumerate(two)
        for k, c in enumerate(three)
        if a.ir.p * b.ir.p == c.ir.p
        and abs(a.ir.l - b.ir.l) <= c.ir.l <= a.ir.l + b.ir.l
        and a.mul == c.mul
    ]


def build(in1: str, in2: str, out: str, dtype: str = "float64") -> ConvProblem:
    return ConvProblem.build(in1, in2, out, allowed(in1, in2, out), dtype=dtype, layout="ir_mul")
