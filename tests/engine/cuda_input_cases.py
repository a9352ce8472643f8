"""Inputs of a system, such as its charge, on a CUDA device.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mdcg import _core

from .batches import assert_same_batch, joined, one_by_one, places
from .cuda_device import Device
from .input_programs import VALUES, input_program, with_values
from .programs import graph, open_model, run

LIMIT = {"float64": 1e-9, "float32": 3e-5}


@pytest.mark.parametrize(("dtype", "types"), [("float64", 3), ("float32", 3), ("float64", 20)])
def test_values(tmp_path: Path, dtype: str, types: int) -> None:
    """Results agree while values change between steps that are captured and replayed."""
    package = input_program(dtype, types).package()
    model = open_model(package, tmp_path / "p.mdcg", device="cuda")
    g = graph(17, types)
    found: dict[tuple[float, ...], dict[str, np.ndarray]] = {}
    for values in (*VALUES, *VALUES[::-1]):
        for _ in range(2 if values in found else 3):
            got = run(model, g, inputs=np.array(values))
            for name, value in found.setdefault(values, got).items():
                np.testing.assert_array_equal(got[name], value)
    assert json.loads(model.report())["replays"] > 8
    for values, got in found.items():
        plain = open_model(with_values(package, values), tmp_path / "q.mdcg")
        for name, value in run(plain, g).items():
            size = np.abs(value).max()
            assert np.abs(got[name] - value).max() < LIMIT[dtype] * size, (values, name)


def test_values_before_the_first_step(tmp_path: Path) -> None:
    package = input_program(preset=False).package()
    model = open_model(package, tmp_path / "p.mdcg", device="cuda")
    with pytest.raises(_core.EngineError, match="reads charge of each system, which was not"):
        run(model, graph(11))
    got = run(model, graph(11), inputs=np.array(VALUES[1]))
    model.release()
    again = run(model, graph(11), inputs=np.array(VALUES[1]))
    plain = open_model(with_values(package, VALUES[1]), tmp_path / "q.mdcg")
    want = run(plain, graph(11))
    np.testing.assert_array_equal(again["forces"], got["forces"])
    assert np.abs(got["forces"] - want["forces"]).max() < 1e-9 * np.abs(want["forces"]).max()


def test_batches_of_different_values(tmp_path: Path) -> None:
    package = input_program().package()
    model = open_model(package, tmp_path / "p.mdcg", device="cuda")
    systems = places(0)[:8]
    chosen = np.array([VALUES[n % 2] for n in range(len(systems))])
    wanted = {"forces": True, "virial": True}
    found = model.evaluate_batch(**joined(systems), **wanted, inputs=chosen)
    for n, (system, values) in enumerate(zip(systems, chosen, strict=True)):
        plain = open_model(with_values(package, values), tmp_path / "q.mdcg")
        want = one_by_one(plain, [system], **wanted)
        rows = slice(*joined(systems)["first_node"][n : n + 2])
        got = {k: v[n : n + 1] if k in ("energy", "virial") else v[rows] for k, v in found.items()}
        assert_same_batch(got, want, 1e-9)


def test_batch_in_the_memory_of_the_device(tmp_path: Path) -> None:
    package = input_program().package()
    model = open_model(package, tmp_path / "p.mdcg", device="cuda")
    device, systems = Device(), places(2)[:7]
    chosen = np.array([VALUES[n] for n in (1, 1, 0, 0, 0, 1, 2)])
    batch = joined(systems)
    wanted = {"forces": True, "virial": True}
    want = model.evaluate_batch(**batch, **wanted, inputs=chosen)
    positions = batch.pop("positions")
    there = {name: device.upload(np.full_like(a, 7.0)) for name, a in want.items()}
    there["positions"] = device.upload(positions)
    model.evaluate_batch(**batch, addresses=there, inputs=chosen)
    for name, value in want.items():
        found = device.download(there[name], value)
        assert np.abs(found - value).max() < 1e-12 * max(1.0, np.abs(value).max())
    positions[batch["first_node"][5]] = np.nan
    there["positions"] = device.upload(positions)
    with pytest.raises(_core.EngineError, match="system 5 of the batch are not finite"):
        model.evaluate_batch(**batch, addresses=there, inputs=chosen)
