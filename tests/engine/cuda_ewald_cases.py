"""Long-range sums on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdcg import _core

from ..covering import covering
from .capi import Exchange, Rank
from .cells import CELLS
from .programs import R_MAX, open_model
from .test_ewald import BOXES, close, package, system
from .test_ghosts import evaluate_together, parts

LIMIT = {"float64": 1e-10, "float32": 3e-5}


def both(path: Path, dtype: str, **options: Any) -> tuple[Any, Any]:
    return open_model(package(dtype, **options), path), _core.Model(str(path), device="cuda")


def compare(device: Any, cpu: Any, s: dict[str, Any], dtype: str) -> None:
    got, want = (model.evaluate(**s, virial=True) for model in (device, cpu))
    for name, value in want.items():
        close(np.asarray(got[name]), np.asarray(value), LIMIT[dtype], name)


@covering(box=list(BOXES), own=["kept", "removed"], dtype=["float64", "float32"])
def test_results(tmp_path: Path, box: str, own: str, dtype: str) -> None:
    cpu, device = both(tmp_path / "p.mdcg", dtype, own=own)
    s = system(BOXES[box])
    compare(device, cpu, s, dtype)
    energy = device.evaluate(**s, forces=False)["energy"]
    assert energy == pytest.approx(cpu.evaluate(**s)["energy"], rel=LIMIT[dtype])
    descriptors = (m.evaluate(**s, descriptors=True)["descriptors"] for m in (device, cpu))
    close(*(found[:, -1] for found in descriptors), LIMIT[dtype], "charges")


def test_steps(tmp_path: Path, rng: np.random.Generator) -> None:
    """Positions, cells, boundaries and numbers of atoms change while steps are captured."""
    cpu, device = both(tmp_path / "p.mdcg", "float64")
    s = system(np.diag([8.3, 9.1, 7.7]), nodes=20)
    for step in range(14):
        compare(device, cpu, s, "float64")
        s["positions"] = s["positions"] + rng.normal(scale=0.01, size=s["positions"].shape)
        if step in (3, 4, 5):  # the waves stay the same, or others enter
            s["cell"] = s["cell"] * (1.0001 if step < 5 else 1.05)
        if step in (7, 9):
            s["periodic"] = (step == 9,) * 3
        if step == 11:
            s = system(CELLS["triclinic"], nodes=9)


def test_several_tiles_and_few_waves(tmp_path: Path) -> None:
    """Tiles that are not full, and a cell so small that it has no waves."""
    cpu, device = both(tmp_path / "p.mdcg", "float32")
    compare(device, cpu, system(np.diag([9.0, 10.0, 11.0]), nodes=70), "float32")
    compare(device, cpu, system(np.diag([1.9, 1.8, 1.95])), "float32")


@pytest.mark.parametrize("cuts", [(0.4,), (0.0,)])
def test_ranks(tmp_path: Path, cuts: tuple[float, ...]) -> None:
    path = tmp_path / "p.mdcg"
    s = system(CELLS["triclinic"], nodes=24)
    want = open_model(package(), path).evaluate(**s, virial=True)
    near = _core.NeighborList(R_MAX, 0.0)
    near.update(s["positions"], s["cell"], s["periodic"])
    table, image = np.unique(near.shifts, axis=0, return_inverse=True)
    g = {**s, "sender": near.sender, "receiver": near.receiver, "image": image.reshape(-1)}
    g["image_shifts"] = table
    ranks = [Rank(str(path), *part, device="cuda", kernels="auto") for part in parts(g, *cuts)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    found = [evaluate_together(ranks, g, exchange, wanted=names) for _ in range(3)]
    assert exchange.calls == ["sum"] * 3
    for name in names:
        assert np.array_equal(found[0][name], found[2][name]), name
        close(found[0][name], np.asarray(want[name]), 1e-10, name)
    for rank in ranks:
        rank.close()


def test_refusals(tmp_path: Path) -> None:
    _, device = both(tmp_path / "p.mdcg", "float64")
    s = system(CELLS["triclinic"])
    for changes, message in (
        ({"periodic": (True, False, False)}, "periodic along 1 direction, expected 0 or 3"),
        ({"virials": True}, "no virials of single atoms"),
        ({"cell": np.diag([400.0, 3.0, 3.0])}, "edges are together at most 320 Å long"),
    ):
        with pytest.raises(_core.EngineError, match=message):
            device.evaluate(**{**s, **changes})
    device.evaluate(**s)
