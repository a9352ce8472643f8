"""Irreps: notation, offsets, errors."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mdcg.problem import Irrep, Irreps

BLOCKS = st.tuples(st.integers(0, 300), st.integers(0, 12), st.sampled_from([1, -1]))


@given(st.lists(BLOCKS, max_size=6))
def test_text_round_trip(blocks: list[tuple[int, int, int]]) -> None:
    irreps = Irreps.from_pairs(blocks)
    assert Irreps.parse(str(irreps)) == irreps
    assert [(b.mul, b.ir.l, b.ir.p) for b in irreps] == blocks


@given(st.lists(BLOCKS, max_size=6))
def test_blocks_follow_each_other(blocks: list[tuple[int, int, int]]) -> None:
    irreps = Irreps.from_pairs(blocks)
    ends = [block.offset + block.dim for block in irreps]
    assert [block.offset for block in irreps] == [0, *ends][: len(blocks)]
    assert irreps.dim == sum(mul * (2 * l + 1) for mul, l, _ in blocks)
    assert len(irreps) == len(blocks)


def test_notation() -> None:
    irreps = Irreps.parse(" 128x0e+ 3x1o +2e ")
    assert [str(block) for block in irreps] == ["128x0e", "3x1o", "1x2e"]
    assert irreps.dim == 128 + 9 + 5
    assert str(irreps[1].ir) == "1o"
    assert irreps[1].ir.dim == 3
    assert irreps[2].offset == 137


def test_empty_text_has_no_blocks() -> None:
    assert Irreps.parse("").dim == 0
    assert len(Irreps.parse("")) == 0
    assert str(Irreps.parse("")) == ""


def test_nothing_is_sorted_or_merged() -> None:
    assert str(Irreps.parse("1x1o+2x0e+3x1o")) == "1x1o+2x0e+3x1o"
    assert Irreps.parse("2x0e+3x0e") != Irreps.parse("5x0e")


@pytest.mark.parametrize(
    "text", ["8x1", "x1o", "-1x0e", "1y", "8 x 1o", "8x-1o", "1.5x0e", "0e,1o"]
)
def test_bad_terms_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=r"irreps term .* in .*: expected a form such as '8x1o'"):
        Irreps.parse(f"4x0e+{text}")


@pytest.mark.parametrize(("degree", "parity"), [(-1, 1), (0, 0), (2, 3)])
def test_bad_irrep(degree: int, parity: int) -> None:
    with pytest.raises(ValueError, match="expected l >= 0 and p = 1 or -1"):
        Irrep(degree, parity)


def test_negative_multiplicity_is_refused() -> None:
    with pytest.raises(ValueError, match="multiplicity"):
        Irreps.from_pairs([(-3, 1, 1)])
