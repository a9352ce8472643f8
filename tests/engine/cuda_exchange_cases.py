"""Exchanges of rows that fail; run as cuda_cases.py is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .capi import Exchange, Rank
from .cuda_cases import assert_equal, with_kernels
from .programs import graph
from .test_ghosts import WANT
from .test_program import two_layers

STEPS = 6


class Failing(Exchange):
    """Refuses one call."""

    def __init__(self, nodes: int, call: int) -> None:
        super().__init__(1, nodes)
        self.left = call

    def __call__(self, *arguments: Any) -> int:
        self.left -= 1
        return 7 if self.left == -1 else super().__call__(*arguments)


@pytest.mark.parametrize("same_edges", [False, True])
@pytest.mark.parametrize("call", range(8))
def test_the_next_steps_work(tmp_path: Path, call: int, same_edges: bool) -> None:
    """After a first step, a half captured one and a replayed one: never with old pieces."""
    path = with_kernels(two_layers().package(), tmp_path / "p.mdcg")
    g = graph(24, box=4.5)
    nodes = np.arange(24)
    rank = Rank(str(path), nodes, nodes[:0], device="cuda", kernels="auto")
    want = rank.evaluate(g, Exchange(1, 24), WANT)
    exchange = Failing(24, call)
    failures = []
    for step in range(STEPS):
        same = same_edges or (step > 0 and step - 1 not in failures)
        try:
            assert_equal(rank.evaluate(g, exchange, WANT, same_edges=same), want)
        except RuntimeError as error:
            said = str(error)
            failures.append(step)
    assert failures == [call // 2]
    assert said.endswith(" returned 7, expected 0")
    rank.close()
