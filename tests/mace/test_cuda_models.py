"""Patched models on a GPU: calculator, mdcg-patch, self-test; needs a CUDA device."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator, patch_model, unpatch_model
from mdcg.ops import graph
from mdcg.ops.graph import GraphCache
from mdcg.patch import load_model

pytestmark = pytest.mark.gpu

DATA = Path(__file__).resolve().parents[2] / "examples" / "data"
CHECKPOINT = DATA / "water.model"
LIMITS = {"float64": 1e-10, "float32": 5e-5}
PROPERTIES = ("energies", "forces", "stress")


def liquid(number: int = 192) -> Atoms:
    """Return the first molecules of the water box, in its cell, a little disturbed."""
    atoms = ase.io.read(DATA / "water192.xyz")[:number]
    atoms.rattle(0.03, seed=5)
    return atoms


def results(calc: MDCGCalculator, atoms: Atoms) -> dict[str, np.ndarray]:
    atoms = atoms.copy()
    calc.calculate(atoms, PROPERTIES)
    return {name: np.array(calc.results[name]) for name in PROPERTIES}


@pytest.mark.parametrize("dtype", LIMITS)
def test_device_and_host_agree(dtype: str) -> None:
    host = MDCGCalculator(CHECKPOINT, device="cpu", dtype=dtype)
    device = MDCGCalculator(CHECKPOINT, device="cuda", dtype=dtype)
    assert device.device == torch.device("cuda", 0)
    assert device.is_patched
    assert len(device.patch_report.patched) == len(host.patch_report.patched) > 0
    isolated = Atoms(
        "OH2", positions=[[0, 0, 0], [0.95, 0, 0], [30, 0, 0]], cell=[50] * 3, pbc=True
    )
    for atoms in (liquid(), liquid(24), isolated, Atoms("O", cell=[20] * 3, pbc=True)):
        want, got = results(host, atoms), results(device, atoms)
        for name in PROPERTIES:
            scale = max(1.0, float(np.abs(want[name]).max()) if name == "energies" else 1.0)
            assert np.abs(got[name] - want[name]).max() <= LIMITS[dtype] * scale, name
    with pytest.raises(Exception, match="does not know"):
        results(device, Atoms("U", cell=[20] * 3, pbc=True))


def test_one_list_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calc = MDCGCalculator(CHECKPOINT, device="cuda")
    atoms = liquid()
    atoms.calc = calc
    atoms.get_forces()
    graphs: GraphCache[graph.CudaGraph] = GraphCache(1 << 20)
    monkeypatch.setattr(graph, "_cuda_graphs", graphs)
    atoms.positions += 1e-7
    atoms.get_forces()
    assert len(graphs) <= 1  # both layers, forward and backward, share one order
    before = graphs.newest_first()
    atoms.positions -= 1e-7
    atoms.get_forces()
    assert graphs.newest_first() == before
    assert (calc.neighbors.num_builds, calc.neighbors.num_updates) == (1, 3)


def test_trajectories_agree() -> None:
    final = {}
    for device in ("cpu", "cuda"):
        atoms = liquid()
        atoms.calc = MDCGCalculator(CHECKPOINT, device=device, dtype="float64", skin=0.3)
        VelocityVerlet(atoms, timestep=0.5 * units.fs).run(30)
        final[device] = atoms.get_positions()
        assert atoms.calc.neighbors.num_builds < 15
    assert np.abs(final["cpu"] - final["cuda"]).max() < 1e-9


def test_live_model_is_patched_where_it_is() -> None:
    model = load_model(CHECKPOINT).to("cuda")
    original = copy.deepcopy(model)
    report = patch_model(model)
    assert report.complete
    assert MDCGCalculator(model).device.type == "cuda"
    assert MDCGCalculator(model, device="cpu").device.type == "cpu"
    got, want = (results(MDCGCalculator(m), liquid()) for m in (model, original))
    assert np.abs(got["forces"] - want["forces"]).max() < 1e-4
    unpatch_model(model)
    for name, value in original.state_dict().items():
        assert torch.equal(value, model.state_dict()[name])


@pytest.mark.parametrize("dtype", LIMITS)
def test_command_verifies_on_the_device(dtype: str, tmp_path: Path, capsys: Any) -> None:
    from mdcg.cli.patch import main

    target = tmp_path / "water.fast.model"
    options = ["--device", "cuda", "--dtype", dtype]
    assert main([str(CHECKPOINT), "-o", str(target), *options]) == 0
    assert "verify (cuda" in capsys.readouterr().out
    report = json.loads((tmp_path / "water.fast.model.report.json").read_text())
    assert report["verification"]["passed"]
    assert report["verification"]["device"].startswith("cuda")
    assert next(load_model(target).parameters()).device.type == "cpu"


def test_selftest_and_environment_look_at_the_device(capsys: Any) -> None:
    from mdcg.cli.main import main

    assert main(["selftest", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert sum(case["device"] == "cuda" and "skipped" not in case for case in cases) >= 4
    assert main(["env", "--json"]) == 0
    gpu = json.loads(capsys.readouterr().out)["gpu"]
    major, minor = torch.cuda.get_device_capability()
    assert gpu["devices"][0] == f"sm_{major}{minor} {torch.cuda.get_device_name(0)}"
    assert gpu["driver"].startswith("for CUDA ")
    low, high = (int(number) for number in re.findall(r"sm_(\d+)", gpu["NVRTC"]))
    assert low <= 10 * major + minor <= high


def test_bench_on_the_device(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from mdcg.bench import timing
    from mdcg.cli.main import main

    monkeypatch.setattr(timing, "keep_heap", lambda: None)
    path = tmp_path / "model.json"
    options = ["--device", "cuda", "--atoms", "24", "--repeats", "2"]
    assert main(["bench", "model", str(CHECKPOINT), *options, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["impl"] for row in rows] == ["original", "patched", "engine"]
    assert all(row["peak_bytes"] > 0 for row in rows)
    assert torch.cuda.get_device_name() in capsys.readouterr().out
