"""Batches on the CPU, through Python and through the C interface."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from .batches import WANTED, Place, assert_same_batch, joined, one_by_one, places
from .capi import Batch, Rank, Results
from .programs import TOLERANCE
from .test_program import two_layers


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_system_is_as_if_alone(tmp_path: Path, dtype: str) -> None:
    two_layers(dtype).package().save(tmp_path / "p.mdcg")
    model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic")
    systems = [place for seed in range(12) for place in places(seed)]  # more than fit into a group
    large = Place(30 * np.random.default_rng(0).random((2500, 3)), np.ones(2500, np.int32),
                  30 * np.eye(3), np.ones(3, bool))  # fmt: skip
    systems.insert(5, large)
    found = model.evaluate_batch(**joined(systems), **WANTED)
    assert_same_batch(found, one_by_one(model, systems, **WANTED), TOLERANCE[dtype])
    few = model.evaluate_batch(**joined(systems), forces=False)
    assert set(few) == {"energy", "energies"}
    virial = model.evaluate_batch(**joined(systems), forces=False, virial=True)["virial"]
    np.testing.assert_array_equal(virial, found["virial"])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_threads_share_groups(tmp_path: Path, dtype: str) -> None:
    """Batches give the same bits for any number of threads."""
    two_layers(dtype).package().save(tmp_path / "p.mdcg")
    at, kinds = 18 * np.random.default_rng(0).random((600, 3)), np.ones(600, np.int32)
    many = Place(at, kinds, 18 * np.eye(3), np.ones(3, bool))
    systems = [*places(), *places(1), many, *places(2)]
    found = []
    for threads in (1, 2, 5):
        model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic", threads=threads)
        for part in (systems, systems[:9], systems):
            found.append(model.evaluate_batch(**joined(part), **WANTED))
        model.evaluate(many.positions, many.types, cell=many.cell)
    for got in found[3:]:
        want = found[1] if len(got["energy"]) == 9 else found[0]
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)
    same_place = Place(np.zeros((2, 3)), np.zeros(2, np.int32), np.eye(3), np.zeros(3, bool))
    first = sum(len(place.types) for place in places())
    said = f"atoms {first} and {first + 1} are at the same place"
    with pytest.raises(_core.EngineError, match=said):
        model.evaluate_batch(**joined([*places(), same_place]), **WANTED)
    again = model.evaluate_batch(**joined(systems), **WANTED)
    np.testing.assert_array_equal(again["forces"], found[0]["forces"])


def test_c_interface(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    rank = Rank(str(tmp_path / "p.mdcg"), np.arange(1), np.arange(0))
    systems = places(1)
    given = joined(systems)
    given["first_node"] = given["first_node"].astype(np.int64)
    given["periodic"] = given["periodic"].astype(np.int32)
    nodes = len(given["types"])
    shapes = {"energy": (len(systems),), "forces": (nodes, 3), "virial": (len(systems), 3, 3)}
    out = {name: np.full(shape, np.nan) for name, shape in shapes.items()}

    def evaluate(**change: Any) -> None:
        fields = {name: array.ctypes.data for name, array in given.items()}
        batch = Batch(**{**fields, "num_systems": len(systems), **change})
        results = Results(**{name: array.ctypes.data for name, array in out.items()})
        rank.check(
            rank.lib.mdcg_evaluate_batch(rank.model, ctypes.byref(batch), ctypes.byref(results))
        )

    evaluate()
    model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic")
    want = one_by_one(model, systems, virial=True)
    want.pop("energies")
    assert_same_batch(out, want, 1e-12)
    evaluate(cells=None, periodic=None)
    for system in systems:
        system.periodic = np.zeros(3, bool)
    want = one_by_one(model, systems, virial=True)
    want.pop("energies")
    assert_same_batch(out, want, 1e-12)
    for change, sentence in {
        "num_systems": (-1, "num_systems is -1, expected 0 or more"),
        "first_node": (None, "first_node is null, expected a pointer"),
        "positions": (None, "positions is null, expected a pointer"),
        "cells": (None, "periodic is given, and cells is null, expected cells"),
        "on_device": (1, "positions of the batch are in the memory of a device, where models"),
    }.items():
        value, text = sentence
        with pytest.raises(RuntimeError, match=text):
            evaluate(**{change: value})
    given["first_node"][2] = given["first_node"][3] + 1
    with pytest.raises(RuntimeError, match=r"first_node\[2\] is \d+ and the next one \d+, expect"):
        evaluate()
    evaluate(num_systems=0, first_node=None)
    rank.close()


def test_faults_name_the_system(tmp_path: Path) -> None:
    two_layers().package().save(tmp_path / "p.mdcg")
    model = _core.Model(str(tmp_path / "p.mdcg"), kernels="generic")
    systems = places(2)
    good = joined(systems)
    nodes = len(good["types"])
    bad = joined(systems)
    bad["positions"][-1, 0] = np.inf
    with pytest.raises(_core.EngineError, match=rf"system \d+ of the batch: .*atom {nodes - 1} at"):
        model.evaluate_batch(**bad)
    bad = joined(systems)
    bad["types"][4] = 3
    with pytest.raises(_core.EngineError, match="the type of atom 4 is 3, expected 0 to 2"):
        model.evaluate_batch(**bad)
    for change, text in (
        ({"cells": None}, "cells and periodic are expected together, of 13 systems"),
        ({"periodic": good["periodic"][1:]}, r"periodic has shape \(12, 3\), expected \(13, 3\)"),
        ({"positions": good["positions"][1:]}, r"positions has shape"),
        ({"positions": None}, "positions are missing, expected an array or an address"),
        ({"first_node": good["first_node"] // 2}, "first_node ends with"),
        ({"first_node": np.zeros(0, int)}, "first_node has shape"),
    ):
        with pytest.raises(_core.EngineError, match=text):
            model.evaluate_batch(**{**good, **change})
