"""The particle mesh on a CUDA device against the same on the processor.

pytest does not collect this file. test_cuda_cases.py runs it on an emulated or a real device.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from mdcg import _core

from .capi import Exchange, Rank
from .cells import CELLS
from .cuda_cases import both
from .cuda_device import Device
from .cuda_ewald_cases import WANTED, compare, given, joined
from .long_range import NUMBERS, of_types, package, system
from .test_ghosts import evaluate_together, parts
from .test_particle_mesh import BOXES, atoms, change_by_moves, large

LIMIT = {"float64": 1e-10, "float32": 1e-5}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("box", list(BOXES))
def test_results(tmp_path: Path, box: str, dtype: str) -> None:
    numbers = list(NUMBERS)[list(BOXES).index(box) % len(NUMBERS)]
    cpu, cuda = both(package(dtype, numbers), tmp_path / "p.mdcg")
    s = atoms(box, NUMBERS[numbers][1], "CUDA")
    want = cpu.evaluate(**s, **WANTED)
    found = [cuda.evaluate(**s, virial=True) for _ in range(2)]
    compare(found[0], {name: want[name] for name in found[0]}, LIMIT[dtype])
    for name, value in found[0].items():
        assert np.array_equal(found[1][name], value), name


def test_large_cells_have_a_mesh(tmp_path: Path) -> None:
    _, cuda = both(of_types(np.array([0.5, -0.9, 0.3])), tmp_path / "p.mdcg")
    assert change_by_moves(cuda, atoms("cube", 2.0, "CUDA")) > 1e-11
    assert change_by_moves(cuda, system(0.8 * large("cube", 2.0, "CUDA"), 70)) < 1e-12


def test_steps(tmp_path: Path) -> None:
    """Cells on both sides of the limit, and bounds that change, in turn."""
    cpu, cuda = both(package("float64", "coarse"), tmp_path / "p.mdcg")
    s = atoms("triclinic", NUMBERS["coarse"][1], "CUDA")
    for scale in (1.0, 1.03, 0.3, 1.03):
        now = {**s, "positions": s["positions"] * scale, "cell": s["cell"] * scale}
        if scale < 1.0:
            now = system(CELLS["triclinic"])
        compare(cuda.evaluate(**now, virial=True), cpu.evaluate(**now, virial=True), 1e-10)


def test_batches(tmp_path: Path) -> None:
    """Meshes of two sizes, and a direct sum, share their memory one after the other."""
    cpu, cuda = both(package(), tmp_path / "p.mdcg")
    systems = [atoms("cube", 2.0, "CUDA"), system(CELLS["cubic"]), atoms("long", 2.0, "CUDA")]
    batch = joined(systems)
    found = cuda.evaluate_batch(**batch)
    compare(found, cpu.evaluate_batch(**batch), LIMIT["float64"])
    again = cuda.evaluate_batch(**batch)
    assert all(np.array_equal(again[name], value) for name, value in found.items())


def test_ranks(tmp_path: Path) -> None:
    """Ranks, one of them without atoms, have the results of one."""
    path = tmp_path / "p.mdcg"
    cpu, _ = both(package(), path)
    s = atoms("triclinic", 2.0, "CUDA")
    want = cpu.evaluate(**s, virial=True)
    g = given(s)
    ranks = [Rank(str(path), *part, device="cuda", kernels="auto") for part in parts(g, 0.0, 0.4)]
    exchange = Exchange(len(ranks), len(g["positions"]))
    names = ("energy", "energies", "forces", "virial")
    got = evaluate_together(ranks, g, exchange, wanted=names)
    assert exchange.calls == ["sum"]
    compare(got, {name: want[name] for name in names}, LIMIT["float64"])
    for rank in ranks:
        rank.close()


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of the sum is counted, and a cell whose sum does not fit is refused before."""
    _, cuda = both(package(), tmp_path / "p.mdcg")
    s, small = atoms("cube", 2.0, "CUDA"), system(CELLS["cubic"])
    want = cuda.evaluate(**small)
    free, total = Device().memory()
    held = json.loads(cuda.report())["bytes"]
    if os.environ.get("EMULATED_CUDA_DEVICES"):
        monkeypatch.setenv("EMULATED_CUDA_MEMORY", str(total - free + 1_000_000))
        for _ in range(2):
            with pytest.raises(_core.EngineError, match=r"evaluation needs [\d.]+ MB of memory on"):
                cuda.evaluate(**s)
            assert np.array_equal(cuda.evaluate(**small)["forces"], want["forces"])
        monkeypatch.delenv("EMULATED_CUDA_MEMORY")
    cuda.evaluate(**s)
    points = (4 * np.linalg.norm(s["cell"], axis=1) / 2.0 - 2).prod()
    assert json.loads(cuda.report())["bytes"] - held > 12 * points


def test_charges_that_are_too_large(tmp_path: Path) -> None:
    _, cuda = both(of_types(np.full(3, 1e6)), tmp_path / "p.mdcg")
    with pytest.raises(_core.EngineError, match="the charges of the atoms are too large"):
        cuda.evaluate(**atoms("cube", 2.0, "CUDA"))
