"""Examples and benchmark of devices, in tiny sizes, where CUDA is emulated or real."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase.io import write

from mdcg.package import Package

from ..emulator.emulator import emulator_environment
from .lmp import (
    EXAMPLES,
    environment,
    executable,
    launcher,
    save_with_kernels,
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


def test_package_has_cuda_kernels() -> None:
    kernels = Package.open(EXAMPLES / "data" / "water.mdcg").manifest["cuda_kernels"]
    passes = {kernel["pass"] for kernel in kernels}
    assert passes == {"forward", "backward", "table_forward", "table_backward"}


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
    np.testing.assert_allclose(on_device["PotEng"], on_host["PotEng"], rtol=1e-8)


def test_water_gpu(tmp_path: Path) -> None:
    write(tmp_path / "water.xyz", water(2, seed=2))
    printed = run(
        *(sys.executable, str(EXAMPLES / "water_gpu.py"), "--steps", "2", "--copies", "1"),
        *("--structure", str(tmp_path / "water.xyz")),
        env=emulator_environment(),
    )
    assert "cuda:0 (" in printed
    assert re.search(r"24 atoms: [\d.]+ ms per step", printed)
    drift = re.search(r"drift of the total energy: ([-+\d.]+) meV per atom", printed)
    assert drift is not None
    assert abs(float(drift[1])) < 5


@pytest.mark.gpu
def test_examples_on_a_device() -> None:
    steps = ("-var", "steps", "20")
    command = [str(executable()), "-in", "in.water_gpu", "-log", "none", *steps]
    assert "cuda:0 (" in run(*command, env=environment(), folder=EXAMPLES)
    run(sys.executable, str(EXAMPLES / "water_gpu.py"), "--steps", "20", env=environment())


def test_bench(tmp_path: Path) -> None:
    """More atoms for more ranks, and two ranks on one device."""
    model = tmp_path / "model.mdcg"
    save_with_kernels("mace", "float32", model)
    options = ["--device", "cuda", "--weak", "--ranks", "1,2", "--atoms", "24", "--steps", "2"]
    printed = run(
        *(sys.executable, "-m", "mdcg", "bench", "lammps", str(model), *options),
        env=emulated() | {"PYTHONPATH": emulator_environment()["PYTHONPATH"]},
        folder=tmp_path,  # Python would import mdcg from the tree
    )
    header, first, second = printed.splitlines()[:3]
    assert "ns/day" in header
    assert first.split()[:3] == ["water", "24", "1"]
    assert second.split()[:3] == ["water", "48", "2"]
    assert header.split()[-1] == "dE/atom"
    assert float(first.split()[-1]) == 0
    assert 0 <= float(second.split()[-1]) < 1e-6
    assert "some ranks shared a device" in printed
