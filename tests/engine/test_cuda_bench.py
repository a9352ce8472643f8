"""The benchmark's steps of packages, on an emulated device and on the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mdcg.package import Package

from ..emulator.emulator import run_emulated
from .cuda_cases import DATA, saved

# Three calls: a new list, the step that is recorded, and what is replayed.
_CODE = """
import json, sys
from pathlib import Path
import numpy as np
from mdcg.bench.model import EngineStep, Settings
from mdcg.bench.systems import make_system

found = []
for device in ("cpu", "cuda"):
    step = EngineStep(Path(sys.argv[1]), Settings(device, stress=True), make_system("water", 3))
    results = [step() for _ in range(3)][-1]
    values = [np.ravel(results[name]).tolist() for name in ("energy", "forces", "stress")]
    found.append([step.num_edges, step.model.summary(), step.own_bytes, *values])
print(json.dumps(found))
"""


def test_a_step_on_a_device_is_that_of_the_host(tmp_path: Path) -> None:
    package = saved(Package.open(DATA / "mace_water_float64.mdcg"), tmp_path / "a.mdcg")
    done = run_emulated("-c", _CODE, str(package))
    assert done.returncode == 0, done.stderr
    host, device = json.loads(done.stdout.splitlines()[-1])
    assert host[0] == device[0] > 0
    assert "cuda:0" in device[1]
    assert device[2] > 0
    for one, other in zip(host[3:], device[3:], strict=True):
        assert one == pytest.approx(other, rel=1e-10, abs=1e-10)
        assert any(one)
