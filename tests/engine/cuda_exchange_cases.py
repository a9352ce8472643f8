"""Failing exchanges of rows, and wrong peers; run like cuda_cases.py."""

from __future__ import annotations

import ctypes
import multiprocessing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from mdcg.package import Package

from ..internals.internals import filling_from, small_up_to
from . import random_programs
from .capi import EXCHANGE_ROWS, Communicator, Exchange, Options, Rank, library
from .cuda_cases import assert_equal, both, saved
from .programs import graph, run
from .test_ghosts import CUTS, WANT, assert_same, evaluate_together, parts
from .test_program import two_layers

STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@settings(max_examples=24, phases=(Phase.generate,))
@given(random_programs.packages(), st.sampled_from(CUTS), st.sampled_from((0, 131072)))
def test_random_programs(folder: Path, package: Package, cuts: Any, small: int) -> None:
    """Energies, forces and virials of several ranks equal those of one.

    The second step is captured, also for large lists; the third has a new list.
    """
    cpu, _ = both(package, folder / "p.mdcg")
    g = graph(22, types=2, box=4.6)
    want = run(cpu, g, virial=True, virials=True)
    ranks = [
        Rank(str(folder / "p.mdcg"), *part, device="cuda", kernels="auto")
        for part in parts(g, *cuts)
    ]
    exchange = Exchange(len(ranks), len(g["positions"]))
    with small_up_to(small), filling_from(small):
        for step in range(4):
            got = evaluate_together(ranks, g, exchange, same_edges=step % 2 == 1)
            assert_same(got, want, 1e-10)
    for rank in ranks:
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


def check_peers(link: Any, path: str, rank: int, number: int, peer: int) -> str:
    """Check in one of two processes; return the error. `number` is the rank that it writes."""

    def gather(_: Any, mine: int, found: int, size: int) -> int:
        own = ctypes.string_at(mine, size)
        link.send_bytes(own)
        other = link.recv_bytes()
        all_ranks = (own, other, other) if rank == 0 else (other, own, own)
        for place, row in enumerate(all_ranks):
            ctypes.memmove(found + place * size, row, size)
        return 0

    lib, model = library(), ctypes.c_void_p()
    options = Options(device=b"cuda", kernels=b"auto")
    assert lib.mdcg_open(path.encode(), ctypes.byref(options), ctypes.byref(model)) == 0
    peers = np.array([[peer, *6 * [0]]])
    communicator = Communicator(
        rank=number,
        num_ranks=3,
        num_peers=1,
        peers=peers.ctypes.data,
        gather=EXCHANGE_ROWS(gather),
    )
    status = lib.mdcg_check_peers(model, ctypes.byref(communicator))
    lib.mdcg_close(model)
    return str(lib.mdcg_last_error().decode()) if status else ""


def send_check(link: Any, *arguments: Any) -> None:
    link.send(check_peers(link, *arguments))


@pytest.mark.parametrize(("number", "reason"), [
    (1, ""),
    (2, "rank 0: it reads 2 from the device of rank 1, which has written its rank there"),
])  # fmt: skip
def test_peers_read_what_others_write(tmp_path: Path, number: int, reason: str) -> None:
    """Memory that opens, but in which other numbers are found, is an error in both processes."""
    path = str(tmp_path / "p.mdcg")
    saved(two_layers().package(), Path(path))
    processes = multiprocessing.get_context("spawn")
    link, there = processes.Pipe()
    other = processes.Process(target=send_check, args=(there, path, 1, number, 0))
    other.start()
    assert check_peers(link, path, 0, 0, 1) == reason
    assert link.recv() == reason
    other.join()


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
