"""Random sequences of calls of the C interface, each call compared with a fresh model."""

from __future__ import annotations

import ctypes
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase, given, settings

from .capi import Batch, ListNumbers, Rank, Results
from .programs import graph

NODES = 12
WANT = ("energy", "energies", "forces", "virial")


def lists() -> list[dict[str, Any]]:
    """Return lists with as many edges: two orders of one structure, and another structure."""
    first = graph(NODES, box=4.0)
    order = np.random.default_rng(1).permutation(NODES)
    permuted = {**first, "sender": order[first["sender"]].astype(np.int32)}
    permuted["receiver"] = order[first["receiver"]].astype(np.int32)
    permuted["positions"] = first["positions"][np.argsort(order)]
    other = graph(NODES, box=3.5, seed=2)
    count = min(len(first["sender"]), len(other["sender"]))
    for g in (first, permuted, other):
        g |= {name: g[name][:count] for name in ("sender", "receiver")}
    return [first, permuted, other]


LISTS = lists()
number = st.integers(0, len(LISTS) - 1)
calls = st.one_of(
    # the host may forget that a list is the same, and its positions may move
    st.tuples(st.just("edges"), number, st.sampled_from([0.0, 0.02]), st.booleans()),
    st.tuples(st.just("edges"), number, st.sampled_from([0.0, 0.02]), st.just(True)),
    st.tuples(st.sampled_from(["cell", "batch", "wrong type", "invented numbers"]), number),
    st.tuples(st.just("prepare")),
)


def call(rank: Rank, numbers: list[ListNumbers], what: tuple[Any, ...]) -> dict[str, Any]:
    """Return the results of a call; `numbers` identify the list, as a host stores them."""
    name, *given = what
    if name == "prepare":
        rank.check(rank.lib.mdcg_prepare(rank.model))
        return {}
    g, mine = dict(LISTS[given[0]]), numbers[given[0]]
    if name == "edges":
        g["positions"] = g["positions"] + given[1] * np.sin(np.arange(3.0 * NODES)).reshape(-1, 3)
        if not given[2]:
            mine.edges = mine.shifts = 0
        return rank.evaluate(g, None, WANT, numbers=mine)
    if name == "invented numbers":
        return rank.evaluate(g, None, WANT, numbers=ListNumbers(1, 1))
    if name == "wrong type":
        with pytest.raises(RuntimeError, match="the type of atom 0 is 7"):
            rank.evaluate({**g, "types": g["types"] + 7 - g["types"][0]}, None, WANT)
        return {}
    if name == "cell":
        return rank.evaluate({**g, "cell": 9.0 * np.eye(3), "make_edges": True}, None, WANT)
    first, positions = np.array([0, NODES]), np.ascontiguousarray(g["positions"])
    forces = np.zeros((NODES, 3))
    batch = Batch(
        num_systems=1,
        first_node=first.ctypes.data,
        positions=positions.ctypes.data,
        types=g["types"].ctypes.data,
    )
    results = Results(forces=forces.ctypes.data)
    rank.check(rank.lib.mdcg_evaluate_batch(rank.model, ctypes.byref(batch), ctypes.byref(results)))
    return {"forces": forces}


def check_sequences(path: str, device: str, kernels: str, examples: int) -> None:
    """Compare random sequences of calls with single ones on the CPU."""
    nodes = np.arange(NODES)
    known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def alone(what: tuple[Any, ...]) -> dict[str, Any]:
        if what not in known:
            rank = Rank(path, nodes, nodes[:0])
            known[what] = call(rank, [ListNumbers() for _ in LISTS], what)
            rank.close()
        return known[what]

    @settings(max_examples=examples, phases=(Phase.generate, Phase.shrink))
    @given(st.lists(calls, min_size=2, max_size=10))
    def check(sequence: list[tuple[Any, ...]]) -> None:
        rank = Rank(path, nodes, nodes[:0], device=device, kernels=kernels)
        numbers = [ListNumbers() for _ in LISTS]
        for what in sequence:
            got, want = call(rank, numbers, what), alone(what)
            assert set(got) == set(want)
            for name, value in want.items():
                size = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-10 * size)
        rank.close()

    check()
