"""Batches on a CUDA device, against single evaluations.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from .batches import WANTED, Place, assert_same_batch, joined, one_by_one, places
from .cuda_cases import LIMIT, both
from .cuda_device import Device
from .programs import Program
from .test_program import two_layers


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("seed", [0, 1])
def test_every_system_is_as_if_alone(tmp_path: Path, dtype: str, seed: int) -> None:
    cpu, cuda = both(two_layers(dtype).package(), tmp_path / "p.mdcg")
    systems = places(seed)
    found = cuda.evaluate_batch(**joined(systems), **WANTED)
    assert_same_batch(found, one_by_one(cpu, systems, **WANTED), LIMIT[dtype])
    alone = one_by_one(cuda, systems, **WANTED)
    assert_same_batch(found, alone, 1e-12 if dtype == "float64" else 8e-6)
    for _ in range(2):  # captured, and replayed
        again = cuda.evaluate_batch(**joined(systems), forces=True)
        for name, values in again.items():
            np.testing.assert_array_equal(values, found[name])
    energies = cuda.evaluate_batch(**joined(systems), forces=False)
    assert set(energies) == {"energy", "energies"}
    np.testing.assert_array_equal(energies["energy"], found["energy"])
    empty = cuda.evaluate_batch(np.zeros(1, int), np.zeros(0, np.int32), np.zeros((0, 3)))
    assert empty["energy"].shape == (0,)


def small_program(dtype: str) -> Program:
    p = Program(3, dtype)
    p.readout(p.features(2))
    return p


def test_more_nodes_than_are_evaluated_at_once(tmp_path: Path) -> None:
    """A batch with too many nodes is evaluated in parts that consist of whole systems."""
    cpu, cuda = both(small_program("float64").package(), tmp_path / "p.mdcg")
    sites = 5.0 * np.stack(np.meshgrid(*[np.arange(26.0)] * 3), -1).reshape(-1, 3)[:16400]
    sites[-40:] += np.random.default_rng(0).random((40, 3)) * 3
    large = Place(sites, np.zeros(len(sites), np.int32), 140 * np.eye(3), np.ones(3, bool))
    single = Place(np.ones((1, 3)), np.ones(1, np.int32), np.eye(3), np.zeros(3, bool))
    systems = [*places(3), large, *places(4), *([single] * 32768), *places(5)]
    cuda.evaluate_batch(**joined(systems[:1]))
    built = json.loads(cuda.report())["neighbor_lists_built"]
    found = cuda.evaluate_batch(**joined(systems))
    want = cpu.evaluate_batch(**joined(systems))
    assert_same_batch(found, want, LIMIT["float64"])
    assert json.loads(cuda.report())["neighbor_lists_built"] - built == 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_memory_of_the_device(tmp_path: Path, dtype: str) -> None:
    """With addresses, positions and results stay on the device, and nothing else is written."""
    _, cuda = both(two_layers(dtype).package(), tmp_path / "p.mdcg")
    device, systems = Device(), places(5)
    batch = joined(systems)
    wanted = {"forces": True, "virial": True, "virials": True}
    want = cuda.evaluate_batch(**batch, **wanted)
    positions = batch.pop("positions")
    arrays = {"positions": positions, **{name: np.full_like(a, 7.0) for name, a in want.items()}}
    padded = {name: np.concatenate([array.ravel(), [7.0]]) for name, array in arrays.items()}
    places_there = {name: device.upload(array) for name, array in padded.items()}
    assert cuda.evaluate_batch(**batch, addresses=places_there) == {}
    for name, array in padded.items():
        found = device.download(places_there[name], array)
        assert found[-1] == 7.0
        np.testing.assert_array_equal(
            found[:-1].reshape(arrays[name].shape),
            arrays[name] if (name == "positions") else want[name],
        )
    positions[3, 1] = np.nan
    number = int(np.searchsorted(batch["first_node"], 3, side="right")) - 1
    bad = {**places_there, "positions": device.upload(positions)}
    with pytest.raises(_core.EngineError, match=f"virial of system {number} of the batch are not"):
        cuda.evaluate_batch(**batch, addresses=bad)
    device.release()


def same_place(systems: list[Place]) -> dict[str, Any]:
    return joined([*systems, Place(np.zeros((2, 3)), np.zeros(2, np.int32), np.eye(3), [0] * 3)])


def test_faults_name_the_system(tmp_path: Path) -> None:
    _, cuda = both(two_layers().package(), tmp_path / "p.mdcg")
    systems = places(2)
    nodes = sum(len(s.types) for s in systems)
    with pytest.raises(
        _core.EngineError, match=rf"atoms {nodes}( \+ 1)? and|atoms {nodes + 1} and"
    ):
        cuda.evaluate_batch(**same_place(systems))
    batch = joined(systems)
    batch["positions"][-1, 0] = np.inf
    with pytest.raises(_core.EngineError, match=rf"system \d+ of the batch: .*atom {nodes - 1} at"):
        cuda.evaluate_batch(**batch)
    batch = joined(systems)
    want = cuda.evaluate_batch(**batch)
    with pytest.raises(_core.EngineError, match="descriptors of a batch in the memory"):
        cuda.evaluate_batch(
            batch["first_node"], batch["types"], addresses={"positions": 64, "descriptors": 64}
        )
    assert_same_batch(cuda.evaluate_batch(**batch), want, 1e-13)
