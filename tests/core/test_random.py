"""Random problems on random graphs against the reference: value, first and second derivatives."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings

from mdcg.problem import ConvProblem, Irrep, Irreps, Path

from .helpers import check_conv, check_tensor_product, compile_ahead, random_graph, usual_specs

pytestmark = pytest.mark.compiler

MULTIPLICITIES = st.sampled_from([1, 3, 8, 17, 33, 40])
# Every example compiles kernels, so failing examples are not shrunk.
PHASES = (Phase.explicit, Phase.generate)
IRREPS = st.builds(Irrep, st.integers(0, 2), st.sampled_from([1, -1]))


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Draw one to three blocks of each input, two to five paths, and every option."""
    in1 = draw(st.lists(st.tuples(MULTIPLICITIES, IRREPS), min_size=1, max_size=3))
    in2 = draw(st.lists(st.tuples(st.integers(1, 3), IRREPS), min_size=1, max_size=3))
    out: list[tuple[int, Irrep]] = []
    paths = []
    for _ in range(draw(st.integers(2, 5))):
        i, j = draw(st.integers(0, len(in1) - 1)), draw(st.integers(0, len(in2) - 1))
        mode = draw(st.sampled_from(["uvu", "uvw"]))
        (mul1, a), (_, b) = in1[i], in2[j]
        ir = Irrep(draw(st.integers(abs(a.l - b.l), a.l + b.l)), a.p * b.p)
        mul = mul1 if mode == "uvu" else draw(MULTIPLICITIES)
        fits = [k for k, (m, r) in enumerate(out) if r == ir and (mode == "uvw" or m == mul)]
        if fits and draw(st.booleans()):
            k = fits[0]
        else:
            k = len(out)
            out.append((mul, ir))
        has_weight = mode == "uvw" or draw(st.booleans())
        paths.append(Path(i, j, k, mode, has_weight, draw(st.sampled_from([1.0, -0.6, 1.7320508]))))
    sides = [Irreps.from_pairs((mul, ir.l, ir.p) for mul, ir in side) for side in (in1, in2, out)]
    return ConvProblem(
        *sides,
        tuple(paths),
        layout=draw(st.sampled_from(["mul_ir", "ir_mul"])),
        dtype=draw(st.sampled_from(["float64", "float32"])),
        shared_weights=draw(st.booleans()),
    )


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(0, 90))


@settings(max_examples=6, phases=PHASES)
@given(problem=problems(), size=SIZES, seed=st.integers(0, 99))
def test_random_convolution(problem: ConvProblem, size: tuple[int, int, int], seed: int) -> None:
    compile_ahead([(problem, usual_specs(True))])
    check_conv(problem, random_graph(*size, seed=seed), seed=seed)


@settings(max_examples=4, phases=PHASES)
@given(problem=problems(), rows=st.integers(0, 150), seed=st.integers(0, 99))
def test_random_tensor_product(problem: ConvProblem, rows: int, seed: int) -> None:
    compile_ahead([(problem, usual_specs(False))])
    check_tensor_product(problem, rows, seed=seed)
