"""Failing exchanges of rows, and wrong peers; run like cuda_cases.py."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from mdcg.package import Package

from ..internals.internals import filling_from, ranges_of, small_up_to
from . import random_programs
from .capi import Exchange, Rank
from .cuda_cases import assert_equal, both, saved
from .programs import graph, run
from .test_ghosts import CUTS, WANT, assert_same, evaluate_together, parts
from .test_program import two_layers

STEPS = 6
DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def put_inner_last(rank: Rank, g: dict[str, Any]) -> None:
    """Put the nodes that receive nothing from ghosts after the other local nodes."""
    from_ghosts = g["receiver"][np.isin(g["sender"], rank.ghosts)]
    inner = ~np.isin(rank.local, from_ghosts)
    rank.local = np.concatenate([rank.local[~inner], rank.local[inner]])
    rank.nodes = np.concatenate([rank.local, rank.ghosts]).astype(np.int64)
    rank.num_inner = int(inner.sum())


@settings(max_examples=24, phases=(Phase.generate,))
@given(
    random_programs.packages(),
    st.sampled_from(CUTS),
    st.sampled_from((0, 131072)),
    st.sampled_from(("whole", "halves", "halves by rows")),
)
def test_random_programs(folder: Path, package: Package, cuts: Any, small: int, how: str) -> None:
    """Energies, forces and virials of several ranks equal those of one.

    The second step is captured, also for large lists; the third has a new list. In halves, some
    receivers are computed while rows travel.
    """
    cpu, _ = both(package, folder / "p.mdcg")
    g = graph(22, types=2, box=4.6)
    want = run(cpu, g, virial=True, virials=True)
    ranks = [
        Rank(str(folder / "p.mdcg"), *part, device="cuda", kernels="auto")
        for part in parts(g, *cuts)
    ]
    exchange = Exchange(len(ranks), len(g["positions"]))
    for rank in ranks if how != "whole" else ():
        put_inner_last(rank, g)
    rows = how == "halves by rows"
    sent = [np.arange(len(rank.local)) if rows else None for rank in ranks]
    with small_up_to(small), filling_from(small):
        for step in range(4):
            got = evaluate_together(ranks, g, exchange, sent, same_edges=step % 2 == 1)
            assert_same(got, want, 1e-10)
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("by_rows", [False, True])
def test_halves(by_rows: bool) -> None:
    """Halves give the same bits, in a first step, in a captured one and with a new list.

    Nodes that wrongly count as inner read rows of ghosts that have not arrived.
    """
    g = graph(120, types=2, box=8.0)
    cut = np.split(np.argsort(g["positions"][:, 0]), [60])

    def opened(inner: str) -> list[Rank]:
        ranks = []
        for local in cut:
            senders = np.unique(g["sender"][np.isin(g["receiver"], local)])
            ghosts = np.setdiff1d(senders, local)
            path = str(DATA / "mace_water_float64.mdcg")
            ranks.append(Rank(path, local, ghosts, device="cuda", kernels="auto"))
            put_inner_last(ranks[-1], g)
            assert 10 < ranks[-1].num_inner < 50
            if inner != "known":
                ranks[-1].num_inner = {"none": 0, "all": 60}[inner]
        return ranks

    halves, whole, wrong = opened("known"), opened("none"), opened("all")
    exchange = Exchange(2, len(g["positions"]))
    sent = [np.arange(60) if by_rows else None] * 2
    with small_up_to(0), filling_from(1), ranges_of(64):
        for step in range(4):
            same = step % 2 == 1
            got = evaluate_together(halves, g, exchange, sent, same_edges=same)
            want = evaluate_together(whole, g, exchange, sent, same_edges=same)
            assert_equal(got, want)
        if not by_rows and "EMULATED_CUDA_DEVICES" in os.environ:  # new memory is NaN
            with pytest.raises(RuntimeError, match="is nan, expected a finite number"):
                evaluate_together(wrong, g, exchange, sent)
    for rank in halves + whole + wrong:
        rank.close()


class Failing(Exchange):
    """An exchange that fails at one call."""

    def __init__(self, nodes: int, call: int) -> None:
        super().__init__(1, nodes)
        self.left = call

    def __call__(self, *arguments: Any) -> int:
        self.left -= 1
        return 7 if self.left == -1 else super().__call__(*arguments)


@pytest.mark.parametrize("same_edges", [False, True])
@pytest.mark.parametrize("call", range(8))
def test_the_next_steps_work(tmp_path: Path, call: int, same_edges: bool) -> None:
    """A failure in a first, half captured or replayed step leaves no old pieces of graphs."""
    path = saved(two_layers().package(), tmp_path / "p.mdcg")
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


class Twice(Exchange):
    """A second rank with the same rows as the first."""

    def gather(self, mine: int, found: int, size: int) -> int:
        for rank in range(2 if size else 0):
            ctypes.memmove(found + rank * size, mine, size)
        return 0


def test_peers_have_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    saved(two_layers().package(), path)
    g = graph(30, box=5.0)
    local, ghosts = parts(g, 0.5)[0]
    rank = Rank(str(path), local, ghosts, device="cuda", kernels="auto")
    sent, n = np.arange(4), len(ghosts)
    cases: dict[str, list[list[int]]] = {
        "name the first 3 of 4 rows of sent without gaps, exp": [[1, 0, 3, 0, n, 0, 0]],
        "name the first 1 of 4 rows of sent": [[1, 0, 1, 0, 0, 0, 0], [1, 2, 2, 0, n, 0, 0]],
        "name the first 4 of 4 rows of sent": [[1, 0, 4, 0, n, 0, 0], [1, 2, 100, 0, 0, 0, 0]],
        f"rank 0: the peers of the communicator name the first {n + 1} of {n} ghosts": [
            [1, 0, 4, 0, n + 1, 0, 0]
        ],
        "peers.1..rank is 2, expected another one of the 2": [[1, 0, 4, 0, n, 0, 0], [2, *6 * [0]]],
    }
    for reason, peers in cases.items():
        with pytest.raises(RuntimeError, match=reason):
            rank.evaluate(g, Twice(1, 30), WANT, sent=sent, peers=np.array(peers))
    rank.close()
