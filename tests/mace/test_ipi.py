"""i-PI with its clients in ASE and LAMMPS, as the examples have them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from ase.io import read

from mdcg import MDCGCalculator

from ..lammps.lmp import environment, executable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of what the examples need, with three steps."""
    (tmp_path / "output").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("ipi_water.sh", "ipi_water.xml", "ipi_client.py", "in.ipi"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name in ("water192.xyz", "water192.data", "water.mdcg"):
        shutil.copy(EXAMPLES / "data" / name, tmp_path / "data")
    text, found = re.subn(
        "<total_steps>200<", "<total_steps>3<", (tmp_path / "ipi_water.xml").read_text()
    )
    assert found == 1
    (tmp_path / "ipi_water.xml").write_text(text)
    return tmp_path


def run(folder: Path, client: str) -> subprocess.CompletedProcess[str]:
    """Run the example."""
    assert (Path(sys.prefix) / "bin" / "i-pi").is_file(), "i-PI is in the group test"
    scripts = folder / "bin"
    scripts.mkdir(exist_ok=True)
    # LAMMPS' launcher finds the plugin only if mdcg is installed
    (scripts / "lmp").write_text(f'#!/bin/sh\nexec {executable()} "$@"\n')
    (scripts / "lmp").chmod(0o755)
    env = environment() if client == "lammps" else dict(os.environ)
    env["PATH"] = f"{scripts}:{sys.prefix}/bin:{os.environ['PATH']}"
    command = ["bash", str(folder / "ipi_water.sh"), *([client] if client == "lammps" else [])]
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("client", ["ase", "lammps"])
def test_clients(folder: Path, client: str) -> None:
    """The first step has ASE's potential energy, and later steps conserve the total energy."""
    for _ in range(2):  # the second run starts beside the results of the first
        done = run(folder, client)
        assert done.returncode == 0, done.stdout + done.stderr
    columns = np.loadtxt(folder / "output" / "ipi.out").T
    atoms = read(EXAMPLES / "data" / "water192.xyz")
    atoms.calc = MDCGCalculator(EXAMPLES / "data" / "water.mdcg")
    energy = atoms.get_potential_energy()  # all four beads are still at one place
    assert columns[5][0] == pytest.approx(energy, abs=1e-4)
    assert len(columns[0]) == 4
    assert np.ptp(columns[5]) > 0.05
    assert np.ptp(columns[2]) < 0.1 * np.ptp(columns[5])


@pytest.mark.parametrize(
    ("file", "wrong", "said"),
    [("ipi_client.py", "import", "python failed"), ("ipi_water.xml", "nvt", "i-pi failed")],
)
def test_neither_waits_for_the_other(folder: Path, file: str, wrong: str, said: str) -> None:
    (folder / file).write_text((folder / file).read_text().replace(wrong, "broken"))
    done = run(folder, "ase")
    assert done.returncode == 1
    assert f"ipi_water.sh: {said}, see above\n" in done.stderr
