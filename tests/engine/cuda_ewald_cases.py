"""The long-range sum on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core
from mdcg.package.linear_map import LinearMap
from mdcg.problem import Irreps

from .capi import Exchange, Rank
from .cells import CELLS
from .cuda_cases import both
from .cuda_device import Device
from .cuda_list_cases import with_copies
from .long_range import BOXES, NUMBERS, OtherRank, close, of_types, package, system
from .programs import R_MAX, Program
from .test_ghosts import evaluate_together, parts

LIMIT = {"float64": 1e-11, "float32": 1e-5}
WANTED: dict[str, Any] = {"virial": True, "descriptors": True}


def compare(got: dict[str, Any], want: dict[str, Any], limit: float) -> None:
    assert set(got) == set(want)
    for name, value in want.items():
        close(np.asarray(got[name]), np.asarray(value), limit, name)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("box", list(BOXES))
def test_results(tmp_path: Path, box: str, dtype: str) -> None:
    numbers = list(NUMBERS)[list(BOXES).index(box) % len(NUMBERS)]
    own = ["kept", "removed"][list(BOXES).index(box) % 2]
    cpu, cuda = both(package(dtype, numbers, own), tmp_path / "p.mdcg")
    s = system(BOXES[box])
    want = cpu.evaluate(**s, **WANTED)
    found = [cuda.evaluate(**s, virial=True) for _ in range(3)]  # at once, captured, replayed
    compare(cuda.evaluate(**s, **WANTED), want, LIMIT[dtype])
    for other in found:
        for name, value in found[0].items():
            assert np.array_equal(other[name], value), name
    alone = cuda.evaluate(**s, forces=False)
    close(alone["energies"], want["energies"], LIMIT[dtype], "energies")


def test_many_and_few_tiles(tmp_path: Path) -> None:
    """More atoms, columns and waves than a tile of the kernels has, whatever the device has."""
    cpu, cuda = both(package(numbers="fine"), tmp_path / "p.mdcg")
    for lengths in ((11.0, 12.0, 33.0), (2.1, 2.0, 2.2), (1.1, 1.0, 1.15)):  # at last no waves
        s = system(np.diag(lengths), nodes=150)
        # the processor may take the mesh
        compare(cuda.evaluate(**s, **WANTED), cpu.evaluate(**s, **WANTED), 1e-10)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_bits_do_not_depend_on_the_device(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks share the sums in another way on a device of another size."""
    _, cuda = both(package(dtype, "fine"), tmp_path / "p.mdcg")
    s = system(np.diag([12.0, 11.0, 14.0]), nodes=140)
    want = cuda.evaluate(**s, virial=True)
    monkeypatch.setenv("EMULATED_CUDA_MULTIPROCESSORS", "1")
    got = _core.Model(str(tmp_path / "p.mdcg"), device="cuda").evaluate(**s, virial=True)
    for name, value in want.items():
        assert np.array_equal(got[name], value), name


def test_steps(tmp_path: Path) -> None:
    """Positions and cell change, with the same captured step and without."""
    cpu, cuda = both(package(), tmp_path / "p.mdcg")
    rng = np.random.default_rng(3)
    s = system(CELLS["triclinic"], nodes=20)
    for scale in (1.0, 1.0, 1.003, 1.003, 1.006, 0.5, 1.4, None, None, 1.0, 1.0):
        s["positions"] = s["positions"] + rng.normal(scale=0.01, size=s["positions"].shape)
        now = {**s, "cell": s["cell"] * (scale or 1.0)}
        if scale is None:
            now = {"positions": s["positions"], "types": s["types"]}
        if scale == 0.5:
            now["positions"] = s["positions"] * 0.5
        compare(
            cuda.evaluate(**now, virial=True), cpu.evaluate(**now, virial=True), LIMIT["float64"]
        )
    assert json.loads(cuda.report())["replays"] > 5


def test_fixed_waves(tmp_path: Path) -> None:
    """The waves of the first cell are kept while the cell changes, also after an error."""
    both(package(), tmp_path / "p.mdcg")
    cpu, cuda = (
        _core.Model(str(tmp_path / "p.mdcg"), fixed_waves=True, **options)
        for options in ({"kernels": "generic"}, {"device": "cuda"})
    )
    s = system(BOXES["edges of ten spacings"])
    for scale in (0.999, 1.001, 1.001, 1.05, 1.4, 1.001):
        now = {**s, "positions": s["positions"] * scale, "cell": s["cell"] * scale}
        if scale == 1.4:
            with pytest.raises(_core.EngineError, match="this cell is strained by"):
                cuda.evaluate(**now)
            continue
        want = cpu.evaluate(**now, virial=True)
        compare(cuda.evaluate(**now, virial=True), want, LIMIT["float64"])


def test_images(tmp_path: Path) -> None:
    """Atoms far from the cell, in single precision, too."""
    for dtype, limit in (("float64", 1e-10), ("float32", 3e-5)):
        cpu, cuda = both(package(dtype), tmp_path / f"{dtype}.mdcg")
        s = system(BOXES["left-handed"])
        want = cpu.evaluate(**s, virial=True)
        s["positions"] = s["positions"] + 200 * s["cell"].sum(axis=0)
        compare(cuda.evaluate(**s, virial=True), want, limit)


@pytest.mark.parametrize("box", ["triclinic", "open"])
@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_hardly_any_nodes(tmp_path: Path, box: str, nodes: int) -> None:
    cpu, cuda = both(package(), tmp_path / "p.mdcg")
    s = system(BOXES[box], nodes=2)
    s["positions"], s["types"] = s["positions"][:nodes], s["types"][:nodes]
    for _ in range(2):
        compare(cuda.evaluate(**s, virial=True), cpu.evaluate(**s, virial=True), LIMIT["float64"])


def test_charges_that_do_not_depend_on_positions(tmp_path: Path) -> None:
    """Without a gradient of charges, forces come from the sum alone."""
    cpu, cuda = both(of_types(np.array([0.4, -0.8, 0.1])), tmp_path / "p.mdcg")
    s = system(BOXES["triclinic"])
    for _ in range(3):
        compare(cuda.evaluate(**s, virial=True), cpu.evaluate(**s, virial=True), LIMIT["float64"])


def test_two_sums(tmp_path: Path) -> None:
    """Two sums of the same charges, whose gradients add up."""
    p = Program(3, "float64")
    x = p.features(7)
    weights = {(0, 0): p.random(7, 1) / 3}
    charges = p.linear(x, LinearMap(x.irreps, Irreps.parse("1x0e"), weights), "charges")
    p.charges(charges)
    p.readout(x)
    p.ewald(charges, *NUMBERS["usual"], True, "one")
    p.ewald(charges, *NUMBERS["coarse"], False, "two")
    cpu, cuda = both(p.package(), tmp_path / "p.mdcg")
    for box in ("triclinic", "open"):
        s = system(BOXES[box])
        for _ in range(3):
            compare(
                cuda.evaluate(**s, virial=True), cpu.evaluate(**s, virial=True), LIMIT["float64"]
            )


def given(s: dict[str, Any]) -> dict[str, Any]:
    """Return the system with edges and a table of shifts."""
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(s["positions"], s["cell"], s["periodic"])
    table, image = np.unique(near.shifts, axis=0, return_inverse=True)
    return {
        **s,
        "sender": near.sender,
        "receiver": near.receiver,
        "image": image.reshape(-1),
        "image_shifts": table,
    }


@pytest.mark.parametrize("cuts", [(), (0.5,), (0.0,), (0.3, 0.7)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    """Ranks with given edges, one of them without atoms, have the results of one."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(package(), path)
    s = system(CELLS["triclinic"], nodes=24)
    want = cpu.evaluate(**s, virial=True)
    g = given(s)
    ranks = [Rank(str(path), *part, device="cuda", kernels="auto") for part in parts(g, *cuts)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    found = [
        evaluate_together(ranks, g, exchange, wanted=names, same_edges=i > 0) for i in range(3)
    ]
    assert exchange.calls == ["sum"] * 3
    for other in found:
        for name in names:
            assert np.array_equal(other[name], found[0][name]), name
    compare(found[0], {name: want[name] for name in names}, LIMIT["float64"])
    for rank in ranks:
        rank.close()


def test_copies_and_a_cell(tmp_path: Path) -> None:
    """The device finds the neighbours among copies, and the cell is given for the sum."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(package(), path)
    s = system(CELLS["triclinic"], nodes=24)
    s["positions"] = np.linalg.solve(s["cell"].T, s["positions"].T).T % 1.0 @ s["cell"]
    g = {**with_copies(s["positions"], s["types"], s["cell"], R_MAX + 0.3, 0.3), "cell": s["cell"]}
    nodes = np.arange(24)
    rank = Rank(str(path), nodes, nodes[:0], device="cuda", kernels="auto")
    want = cpu.evaluate(**s, virial=True)
    names = ("energy", "energies", "forces", "virial")
    for step in range(3):
        got = rank.evaluate(g, None, names, same_edges=step > 0)
        compare(got, {name: want[name] for name in names}, LIMIT["float64"])
    with pytest.raises(RuntimeError, match="given without a cell, expected cell and periodic"):
        rank.evaluate({k: v for k, v in g.items() if k != "cell"}, None, names)
    rank.close()


def joined(systems: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the arguments of a batch."""
    return {
        "first_node": np.cumsum([0, *(len(s["types"]) for s in systems)]),
        "positions": np.concatenate([s["positions"] for s in systems]),
        "types": np.concatenate([s["types"] for s in systems]),
        "cells": np.stack([s.get("cell", np.eye(3)) for s in systems]),
        "periodic": np.stack([np.full(3, "cell" in s) for s in systems]),
        "virial": True,
    }


def test_batches(tmp_path: Path) -> None:
    """Systems of a batch share a pass; each has the bits that it has alone."""
    cpu, cuda = both(package(), tmp_path / "p.mdcg")
    boxes = ("triclinic", "open", "small", "cubic")
    systems = [system(BOXES[box], seed=i) for i, box in enumerate(boxes)]
    none = {"positions": np.zeros((0, 3)), "types": np.zeros(0, np.int32), "cell": np.eye(3)}
    systems.insert(2, none)
    batch = joined(systems)
    built = json.loads(cuda.report()).get("neighbor_lists_built", 0)
    found = cuda.evaluate_batch(**batch)
    assert json.loads(cuda.report())["neighbor_lists_built"] - built == 1
    compare(found, cpu.evaluate_batch(**batch), LIMIT["float64"])
    for _ in range(2):
        again = cuda.evaluate_batch(**batch)
        assert all(np.array_equal(again[name], value) for name, value in found.items())
    for number, s in enumerate(systems):
        alone = cuda.evaluate_batch(**joined([s]))
        nodes = slice(*batch["first_node"][number : number + 2])
        assert np.array_equal(alone["forces"], found["forces"][nodes])
        assert alone["energy"][0] == found["energy"][number]
        assert np.array_equal(alone["virial"][0], found["virial"][number])
    moved = cuda.evaluate_batch(**joined(systems[::-1]))
    assert np.array_equal(moved["energy"], found["energy"][::-1])
    slab = joined(systems)
    slab["periodic"][0, 2] = False
    with pytest.raises(_core.EngineError, match="periodic along 2 directions, expected 0 or 3"):
        cuda.evaluate_batch(**slab)
    with pytest.raises(_core.EngineError, match="no virials of single atoms"):
        cuda.evaluate_batch(**batch, virials=True)


def test_batches_on_the_device(tmp_path: Path) -> None:
    _, cuda = both(package(), tmp_path / "p.mdcg")
    batch = joined([system(BOXES[box]) for box in ("triclinic", "open", "small")])
    want = cuda.evaluate_batch(**batch)
    device = Device()
    arrays = {"positions": batch.pop("positions")}
    arrays |= {name: np.zeros_like(value) for name, value in want.items()}
    there = {name: device.upload(array) for name, array in arrays.items()}
    del batch["virial"]
    assert cuda.evaluate_batch(**batch, addresses=there) == {}
    for name, value in want.items():
        np.testing.assert_array_equal(device.download(there[name], value), value)
    device.release()


def test_refusals(tmp_path: Path) -> None:
    path = tmp_path / "p.mdcg"
    _, cuda = both(package(), path)
    s = system(CELLS["triclinic"])

    def refuse(message: str, **changes: Any) -> None:
        with pytest.raises(_core.EngineError, match=message) as error:
            cuda.evaluate(**{**s, **changes})
        assert "\n" not in str(error.value)

    for _ in range(2):  # also after a step was captured
        refuse("periodic along 2 directions, expected 0 or 3: ", periodic=(True, True, False))
        refuse("no virials of single atoms: ask for the virial of the system", virials=True)
        refuse("does not support energy_weights", energy_weights=np.ones(len(s["types"])))
        refuse("cell vectors", cell=np.ones((3, 3)))
        refuse(r"up to 5\.\d+e\+09 waves .* expected at most 2\.68e\+08", cell=np.eye(3) * 2200.0)
        for _ in range(3):
            cuda.evaluate(**s)
    with pytest.raises(_core.EngineError, match=r"memory is '90 %'.*not divided into domains"):
        _core.Model(str(path), device="cuda", memory="90 %")
    rank = Rank(
        str(path), np.arange(len(s["types"])), np.zeros(0, np.int32), device="cuda", kernels="auto"
    )
    none = np.zeros(0, np.int32)
    g = {"positions": s["positions"], "types": s["types"], "sender": none, "receiver": none}
    for cell in (np.zeros((3, 3)), np.ones((3, 3))):
        with pytest.raises(RuntimeError, match=r"cell vectors? "):
            rank.evaluate({**g, "cell": cell}, None, ("forces",))
    with pytest.raises(
        RuntimeError, match="the model sums over all pairs of an open system, which"
    ):
        rank.evaluate(g, OtherRank(), ("forces",))
    rank.close()


def test_charges_that_are_too_large(tmp_path: Path) -> None:
    models = both(of_types(np.full(3, 1e6)), tmp_path / "p.mdcg")
    s = system(CELLS["triclinic"], nodes=30)
    for model in models:
        for _ in range(3):
            with pytest.raises(_core.EngineError, match="the charges of the atoms are too large"):
                model.evaluate(**s)
