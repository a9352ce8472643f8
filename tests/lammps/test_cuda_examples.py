"""Examples and benchmark of devices, in tiny sizes, where CUDA is emulated or real."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import write

from ..emulator.emulator import emulator_environment
from .lmp import (
    EXAMPLES,
    environment,
    executable,
    launcher,
    package,
    thermo_tables,
    water,
)
from .lmp import write_data as write_lammps
from .test_cuda import emulated

pytestmark = pytest.mark.timeout(300)
ROOT = EXAMPLES.parent


def run(*command: str, env: dict[str, str], folder: Path = ROOT) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def drift(printed: str) -> float:
    found = re.search(r"drift of the total energy: ([-+\d.]+) meV per atom", printed)
    assert found is not None
    return float(found[1])


def compare_thermo(got: dict[str, Any], want: dict[str, Any], rows: int) -> None:
    """Compare energies in every row; LAMMPS prints eight digits, of which the last may differ."""
    assert list(got) == list(want)
    for name in ("PotEng", "TotEng"):
        assert len(got[name]) == rows
        np.testing.assert_allclose(got[name], want[name], rtol=1.5e-7, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_water_gpu(tmp_path: Path, ranks: int) -> None:
    write_lammps(tmp_path / "water.data", water(2, seed=2), ("O", "H"))
    settings = {"data": str(tmp_path / "water.data"), "copies": "1", "steps": "2"}
    options = [word for name, value in settings.items() for word in ("-var", name, value)]
    command = [*launcher(ranks), str(executable()), "-in", "in.water_gpu", "-log", "none", *options]
    printed = run(*command, env=emulated(EMULATED_CUDA_DEVICES="2"), folder=EXAMPLES)
    (on_device,) = thermo_tables(printed)
    assert "cuda:0 (" in printed
    assert ("cuda:1 (" in printed) == (ranks == 2)
    printed = run(*command, "-var", "device", "cpu", env=environment(), folder=EXAMPLES)
    (on_host,) = thermo_tables(printed)
    compare_thermo(on_device, on_host, rows=3)


def test_water_gpu(tmp_path: Path) -> None:
    write(tmp_path / "water.xyz", water(2, seed=2))
    printed = run(
        *(sys.executable, str(EXAMPLES / "water_gpu.py"), "--steps", "2", "--copies", "1"),
        *("--structure", str(tmp_path / "water.xyz")),
        env=emulator_environment(),
    )
    assert "cuda:0 (" in printed
    assert re.search(r"24 atoms: [\d.]+ ms per step", printed)
    assert abs(drift(printed)) < 5


@pytest.mark.gpu
def test_in_water_gpu_on_a_device() -> None:
    """The example in.water_gpu gives the CPU's trajectory, to the digits that LAMMPS prints."""
    options = [*("-var", "steps", "20"), *("-var", "copies", "2")]
    command = [str(executable()), "-in", "in.water_gpu", "-log", "none", *options]
    printed = run(*command, env=environment(), folder=EXAMPLES)
    assert "cuda:0 (" in printed
    (on_device,) = thermo_tables(printed)
    printed = run(*command, "-var", "device", "cpu", env=environment(), folder=EXAMPLES)
    (on_host,) = thermo_tables(printed)
    compare_thermo(on_device, on_host, rows=11)
    assert np.ptp(on_device["PotEng"]) > 0.3
    # The time step limits conservation; a ratio of 0.02 was found on the CPU.
    assert np.ptp(on_device["TotEng"]) < 0.05 * np.ptp(on_device["PotEng"])


@pytest.mark.gpu
def test_water_gpu_on_a_device() -> None:
    drifts = []
    for device in ("cuda", "cpu"):
        options = ("--steps", "20", "--copies", "2", "--device", device)
        printed = run(sys.executable, str(EXAMPLES / "water_gpu.py"), *options, env=environment())
        assert ("cuda:0 (" in printed) == (device == "cuda")
        assert "1536 atoms: " in printed
        drifts.append(drift(printed))
    assert abs(drifts[0]) < 0.1  # found on the CPU: 0.002
    assert drifts[0] == pytest.approx(drifts[1], abs=2e-4)  # four digits are printed


def test_bench(tmp_path: Path) -> None:
    """The weak-scaling benchmark adds atoms with ranks and reports a shared device."""
    model = tmp_path / "model.mdcg"
    shutil.copy(package("mace", "float32"), model)
    options = ["--device", "cuda", "--weak", "--ranks", "1,2", "--atoms", "24", "--steps", "2"]
    printed = run(
        *(sys.executable, "-m", "mdcg", "bench", "lammps", str(model), *options),
        env=emulated() | {"PYTHONPATH": emulator_environment()["PYTHONPATH"]},
        folder=tmp_path,  # not the tree, whose mdcg Python would import
    )
    header, first, second = printed.splitlines()[:3]
    assert "ns/day" in header
    assert first.split()[:3] == ["water", "24", "1"]
    assert second.split()[:3] == ["water", "48", "2"]
    assert header.endswith("dE, eV/atom")
    assert float(first.split()[-1]) == 0
    assert 0 <= float(second.split()[-1]) < 1e-6
    assert "some ranks shared a device" in printed
