"""Ghosts: parts of a system in several threads give the results of the whole system."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from mdcg import _core
from mdcg.package import Package

from . import random_programs
from .capi import Exchange, Rank
from .programs import graph, open_model, run
from .test_program import two_layers, two_readers

WANT = ("energy", "energies", "forces", "virial", "virials")
POOL = ThreadPoolExecutor(3)


def parts(g: dict[str, Any], *cuts: float) -> list[tuple[Any, Any]]:
    """Return shuffled local nodes and ghosts of each rank; cuts are shares of the nodes."""
    rng = np.random.default_rng(9)
    nodes = rng.permutation(len(g["positions"]))
    out = []
    for local in np.split(nodes, [int(cut * len(nodes)) for cut in cuts]):
        senders = np.unique(g["sender"][np.isin(g["receiver"], local)])
        out.append((local, rng.permutation(np.setdiff1d(senders, local))))
    return out


def evaluate_together(
    ranks: list[Rank],
    g: dict[str, Any],
    exchange: Exchange,
    sent: Any = (None,) * 3,
    wanted: tuple[str, ...] = WANT,
    **more: Any,
) -> dict[str, Any]:
    """Evaluate each rank in its own thread; return sums over ranks, in the order of `g`."""

    def evaluate(rank: Rank, sent: Any) -> Any:
        try:
            return rank.evaluate(g, exchange, wanted, sent=sent, **more)
        except BaseException:
            exchange.barrier.abort()  # the others wait there
            raise

    assert len(ranks) <= 3, "each waits for the others in a thread of its own"
    results = list(POOL.map(evaluate, ranks, sent))
    n = len(g["positions"])
    shapes = {"energy": 1, "energies": n, "forces": (n, 3), "virial": (3, 3), "virials": (n, 3, 3)}
    total = {name: np.zeros(shapes[name]) for name in wanted}
    for rank, result in zip(ranks, results, strict=True):
        total["energies"][rank.local] = result["energies"]
        for name in ("energy", "virial"):
            total[name] += result[name]
        for name in {"forces", "virials"}.intersection(wanted):
            np.add.at(total[name], rank.nodes, result[name])
    return total


def assert_same(got: dict[str, Any], want: dict[str, Any], limit: float) -> None:
    for name, value in want.items():
        scale = np.abs(want["energies" if name == "energy" else name]).max(initial=1e-3)
        error = np.abs(got[name] - value).max(initial=0.0) / scale
        assert error < limit, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("share", [0.5, 0.1, 0.0])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("make", [two_layers, two_readers])
def test_two_ranks(tmp_path: Path, dtype: str, share: float, make: Any) -> None:
    package = make(dtype).package()
    g = graph(70, box=7.0)
    path = tmp_path / "p.mdcg"
    want = run(open_model(package, path, kernels="generic"), g, virial=True, virials=True)
    ranks = [Rank(str(path), local, ghosts) for local, ghosts in parts(g, share)]
    exchange = Exchange(2, len(g["positions"]))
    for _ in range(2):  # the second time with buffers that exist
        exchange.calls.clear()
        got = evaluate_together(ranks, g, exchange)
        assert exchange.calls == ["forward", "reverse"]
        assert_same(got, want, {"float64": 1e-11, "float32": 1e-5}[dtype])
    for rank in ranks:
        rank.close()


# Where the nodes of one rank end and those of the next begin, as shares of all nodes; in two of
# these a rank has no nodes.
CUTS = [(0.5,), (0.9,), (0.0,), (0.3, 0.7), (0.5, 0.5), (0.1, 0.4)]
PROGRAMS = 1000


def test_random_programs(tmp_path: Path) -> None:
    """Energies, forces and virials of 2 and of 3 ranks equal those of one rank."""
    path = tmp_path / "p.mdcg"
    graphs = [graph(22, types=2, box=4.6, seed=seed) for seed in range(4)]
    choices = st.tuples(st.integers(0, 3), st.sampled_from(CUTS[:3]), st.sampled_from(CUTS[3:]))
    seen: Counter[Any] = Counter()

    @settings(max_examples=PROGRAMS, phases=(Phase.generate, Phase.shrink))
    @given(random_programs.packages(), choices)
    def check(package: Package, chosen: Any) -> None:
        seed, two, three = chosen
        g = graphs[seed]
        path.write_bytes(package.to_bytes())
        want = run(
            _core.Model(str(path), kernels="generic", threads=1), g, virial=True, virials=True
        )
        for cuts in (two, three):
            ranks = [Rank(str(path), *part) for part in parts(g, *cuts)]
            try:
                exchange = Exchange(len(ranks), len(g["positions"]))
                for _ in range(2 if cuts == two else 1):  # then in buffers that hold old numbers
                    got = evaluate_together(ranks, g, exchange)
            finally:
                for rank in ranks:
                    rank.close()
            assert_same(got, want, 1e-12)
        seen["programs"] += 1
        for kinds in random_programs.readers(package).values():
            seen.update([min(len(kinds), 4), *kinds])

    check()
    print(seen)
    assert seen["programs"] >= PROGRAMS
    assert min(seen[number] for number in (1, 2, 3)) > PROGRAMS // 10
    assert min(seen[kind] for kind in random_programs.READERS) > PROGRAMS // 50


def test_ghosts_need_a_communicator(tmp_path: Path) -> None:
    g = graph(30, box=5.0)
    path = tmp_path / "p.mdcg"
    two_layers().package().save(path)
    local, ghosts = parts(g, 0.5)[0]
    rank = Rank(str(path), local, ghosts)
    with pytest.raises(RuntimeError, match="ghosts"):
        rank.evaluate(g, None, WANT)
    rank.close()


def test_failing_exchange(tmp_path: Path) -> None:
    g = graph(30, box=5.0)
    path = tmp_path / "p.mdcg"
    two_layers().package().save(path)
    local, ghosts = parts(g, 0.5)[0]
    rank = Rank(str(path), local, ghosts)
    with pytest.raises(RuntimeError):
        rank.evaluate(g, lambda *_: 1, WANT)
    rank.close()
