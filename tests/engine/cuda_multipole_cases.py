"""Charges and dipoles in each other's fields on a CUDA device, against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from .capi import Exchange, Rank
from .cells import CELLS
from .cuda_cases import both
from .cuda_ewald_cases import WANTED, compare, given
from .long_range import BOXES, OtherRank, close, system
from .multipoles import program
from .test_ghosts import evaluate_together, parts
from .test_multipoles import FIELD

LIMIT = {"float64": 1e-10, "float32": 3e-5}


@covering(
    box=["triclinic", "small", "open"],
    own=["kept", "removed"],
    dtype=["float64", "float32"],
    l_max=[0, 1],
    field_l_max=[0, 1],
    widths=["one", "two"],
    steps=[0, 1, 2],
)
def test_results(
    tmp_path: Path,
    box: str,
    own: str,
    dtype: str,
    l_max: int,
    field_l_max: int,
    widths: str,
    steps: int,
) -> None:
    options: dict[str, Any] = {"own": own, "l_max": l_max, "widths": widths, "steps": steps}
    p = program(dtype, field_l_max=field_l_max, **options)
    cpu, cuda = both(p.package(), tmp_path / "p.mdcg")
    s = system(BOXES[box])
    want = cpu.evaluate(**s, **WANTED)
    found = [cuda.evaluate(**s, virial=True) for _ in range(3)]  # at once, captured, replayed
    compare(cuda.evaluate(**s, **WANTED), want, LIMIT[dtype])
    for other in found:
        for name, value in found[0].items():
            assert np.array_equal(other[name], value), name
    alone = cuda.evaluate(**s, forces=False)
    close(alone["energies"], want["energies"], LIMIT[dtype], "energies")


@covering(
    dtype=["float64", "float32"], l_max=[0, 1], field_l_max=[0, 1], steps=[0, 1, 2], nodes=[1, 13]
)
def test_external_field(
    tmp_path: Path, dtype: str, l_max: int, field_l_max: int, steps: int, nodes: int
) -> None:
    options: dict[str, Any] = {"l_max": l_max, "field_l_max": field_l_max, "steps": steps}
    p = program(dtype, external=FIELD, **options)
    cpu, cuda = both(p.package(), tmp_path / "p.mdcg")
    s = {name: value[:nodes] for name, value in system(None).items()}
    for field in (FIELD, FIELD, FIELD, (0.0, 0.0, 0.0), (0.1, 0.2, 0.0)):
        s["inputs"] = [1.0, 2.0, *field]
        compare(cuda.evaluate(**s, **WANTED), cpu.evaluate(**s, **WANTED), LIMIT[dtype])
        alone = cuda.evaluate(**s, forces=False)
        want = cpu.evaluate(**s, forces=False)
        close(alone["energies"], want["energies"], LIMIT[dtype], "energies")
    with pytest.raises(_core.EngineError, match="and the system is periodic, where the energy wo"):
        cuda.evaluate(**{**s, "cell": 9.0 * np.eye(3), "periodic": (True,) * 3})


def test_many_and_few_tiles(tmp_path: Path) -> None:
    """More atoms, columns and waves than a tile of the kernels has, and at last no waves."""
    cpu, cuda = both(program(numbers="fine", steps=1).package(), tmp_path / "p.mdcg")
    for lengths in ((7.0, 6.0, 21.0), (1.25, 1.1, 1.15)):
        s = system(np.diag(lengths), nodes=70)
        compare(cuda.evaluate(**s, **WANTED), cpu.evaluate(**s, **WANTED), LIMIT["float64"])


def test_bits_do_not_depend_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, cuda = both(program(steps=1).package(), tmp_path / "p.mdcg")
    s = system(np.diag([9.0, 8.0, 10.0]), nodes=70)
    want = cuda.evaluate(**s, virial=True)
    monkeypatch.setenv("EMULATED_CUDA_MULTIPROCESSORS", "1")
    got = _core.Model(str(tmp_path / "p.mdcg"), device="cuda").evaluate(**s, virial=True)
    for name, value in want.items():
        assert np.array_equal(got[name], value), name


def test_steps(tmp_path: Path) -> None:
    """Positions and cell change, with the same captured step and without."""
    cpu, cuda = both(program(steps=1).package(), tmp_path / "p.mdcg")
    rng = np.random.default_rng(3)
    s = system(CELLS["triclinic"], nodes=20)
    for scale in (1.0, 1.0, 1.003, 1.4, None, None, 1.0, 1.0):
        s["positions"] = s["positions"] + rng.normal(scale=0.01, size=s["positions"].shape)
        now = {**s, "cell": s["cell"] * (scale or 1.0)}
        if scale is None:
            now = {"positions": s["positions"], "types": s["types"]}
        got, want = (model.evaluate(**now, virial=True) for model in (cuda, cpu))
        compare(got, want, LIMIT["float64"])
    assert json.loads(cuda.report())["replays"] > 5


@pytest.mark.parametrize("box", ["triclinic", "open"])
@pytest.mark.parametrize("nodes", [1, 2])
def test_hardly_any_nodes(tmp_path: Path, box: str, nodes: int) -> None:
    cpu, cuda = both(program().package(), tmp_path / "p.mdcg")
    s = system(BOXES[box], nodes=2)
    s["positions"], s["types"] = s["positions"][:nodes], s["types"][:nodes]
    for _ in range(2):
        compare(cuda.evaluate(**s, virial=True), cpu.evaluate(**s, virial=True), LIMIT["float64"])


@pytest.mark.parametrize("cuts", [(), (0.5,), (0.0,), (0.3, 0.7)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    """Ranks with given edges, one of them without atoms, have the results of one."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(program(steps=1).package(), path)
    s = system(CELLS["triclinic"], nodes=24)
    want = cpu.evaluate(**s, virial=True)
    g = given(s)
    ranks = [Rank(str(path), *part, device="cuda", kernels="auto") for part in parts(g, *cuts)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    found = [
        evaluate_together(ranks, g, exchange, wanted=names, same_edges=i > 0) for i in range(3)
    ]
    # two totals, a field, and the energy; backward the totals and the field again
    assert exchange.calls == ["sum"] * 3 * (2 + 1 + 1 + 2 + 1)
    for other in found:
        for name in names:
            assert np.array_equal(other[name], found[0][name]), name
    compare(found[0], {name: want[name] for name in names}, LIMIT["float64"])
    for rank in ranks:
        rank.close()


def test_batches(tmp_path: Path) -> None:
    cpu, cuda = both(program(steps=1).package(), tmp_path / "p.mdcg")
    systems = [system(BOXES[box], seed=i) for i, box in enumerate(("triclinic", "open", "small"))]
    batch: dict[str, Any] = {
        "first_node": np.cumsum([0, *(len(s["types"]) for s in systems)]),
        "positions": np.concatenate([s["positions"] for s in systems]),
        "types": np.concatenate([s["types"] for s in systems]),
        "cells": np.stack([s.get("cell", np.eye(3)) for s in systems]),
        "periodic": np.stack([np.full(3, "cell" in s) for s in systems]),
        "virial": True,
    }
    found = cuda.evaluate_batch(**batch)
    compare(found, cpu.evaluate_batch(**batch), LIMIT["float64"])


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    _, cuda = both(program(steps=1).package(), path)
    s = system(CELLS["triclinic"])
    for _ in range(2):  # also after a step was captured
        with pytest.raises(_core.EngineError, match="periodic along 2 directions, expected 0 or 3"):
            cuda.evaluate(**{**s, "periodic": (True, True, False)})
        for _ in range(3):
            cuda.evaluate(**s)
    none = np.zeros(0, np.int32)
    rank = Rank(str(path), np.arange(len(s["types"])), none, device="cuda", kernels="auto")
    g = {"positions": s["positions"], "types": s["types"], "sender": none, "receiver": none}
    with pytest.raises(
        RuntimeError, match="the model sums over all pairs of an open system, which"
    ):
        rank.evaluate(g, OtherRank(), ("forces",))
    rank.close()


def test_charges_that_are_too_large(tmp_path: Path) -> None:
    models = both(program(charge=1e7, steps=1).package(), tmp_path / "p.mdcg")
    s = system(CELLS["triclinic"])
    for model in models:
        for _ in range(3):
            with pytest.raises(_core.EngineError, match="the charges of the atoms are too large"):
                model.evaluate(**s)
