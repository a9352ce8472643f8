"""Ghosts: parts of a system in two threads give what the whole system gives in one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .capi import Exchange, Rank
from .programs import graph, open_model, run
from .test_program import two_layers, two_readers

WANT = ("energy", "energies", "forces", "virial", "virials")


def parts(g: dict[str, Any], share: float) -> list[tuple[Any, Any]]:
    """Return local nodes and ghosts of two ranks, in orders of their own."""
    rng = np.random.default_rng(9)
    nodes = rng.permutation(len(g["positions"]))
    cut = int(share * len(nodes))
    out = []
    for local in (nodes[:cut], nodes[cut:]):
        senders = np.unique(g["sender"][np.isin(g["receiver"], local)])
        out.append((local, rng.permutation(np.setdiff1d(senders, local))))
    return out


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
    got: list[Any] = [None, None]

    def work(i: int) -> None:
        try:
            got[i] = ranks[i].evaluate(g, exchange, WANT)
        except BaseException as error:
            got[i] = error
            exchange.barrier.abort()

    for _ in range(2):  # the second time with buffers that exist
        exchange.calls.clear()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in got:
            if isinstance(result, BaseException):
                raise result
        assert exchange.calls == ["forward", "reverse"]
        limit = {"float64": 1e-11, "float32": 1e-5}[dtype]
        total: dict[str, Any] = {
            name: np.zeros_like(want[name]) for name in WANT if name != "energy"
        }
        for rank, result in zip(ranks, got, strict=True):
            total["energies"][rank.local] += result["energies"]
            total["virial"] += result["virial"]
            np.add.at(total["forces"], rank.nodes, result["forces"])
            np.add.at(total["virials"], rank.nodes, result["virials"])
        assert np.isclose(sum(r["energy"][0] for r in got), want["energy"], rtol=limit)
        for name, value in total.items():
            scale = np.abs(want[name]).max()
            assert np.abs(value - want[name]).max() < limit * scale, name
    for rank in ranks:
        rank.close()


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
