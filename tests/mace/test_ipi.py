"""i-PI with its clients in ASE and LAMMPS, as the examples have them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from ase.io import read

from mdcg import MDCGCalculator

from ..lammps.lmp import environment, executable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SERVER = Path(sys.prefix) / "bin" / "i-pi"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of what the examples need, with three steps."""
    (tmp_path / "output").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("ipi_water.xml", "ipi_client.py", "in.ipi"):
        shutil.copy(EXAMPLES / name, tmp_path)
    for name in ("water192.xyz", "water192.data", "water.mdcg"):
        shutil.copy(EXAMPLES / "data" / name, tmp_path / "data")
    return tmp_path


@pytest.mark.parametrize("client", ["ase", "lammps"])
def test_clients(folder: Path, client: str) -> None:
    """The first step has the energy of the structure; the next ones conserve theirs."""
    assert SERVER.is_file(), "i-PI is in the group test"
    address = f"mdcg-{uuid.uuid4().hex[:12]}"
    text = (folder / "ipi_water.xml").read_text()
    text, found = re.subn("<address>mdcg</address>", f"<address>{address}</address>", text)
    assert found == 1
    text, found = re.subn("<total_steps>200<", "<total_steps>3<", text)
    assert found == 1
    (folder / "ipi_water.xml").write_text(text)
    if client == "ase":
        command = [sys.executable, "ipi_client.py", "--address", address]
        env = dict(os.environ)
    else:
        command = [str(executable()), "-in", "in.ipi", "-var", "address", address]
        env = environment()
    server = subprocess.Popen(
        [str(SERVER), "ipi_water.xml"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        socket = Path(f"/tmp/ipi_{address}")
        while not socket.exists() and server.poll() is None:
            time.sleep(0.05)
        # LAMMPS ends with an error when the server goes
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
        )
        said, _ = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0, said + done.stdout + done.stderr
    columns = np.loadtxt(folder / "output" / "ipi.out").T
    atoms = read(EXAMPLES / "data" / "water192.xyz")
    atoms.calc = MDCGCalculator(EXAMPLES / "data" / "water.mdcg")
    energy = atoms.get_potential_energy()  # of four beads that are still at one place
    assert columns[5][0] == pytest.approx(energy, abs=1e-4)
    assert len(columns[0]) == 4
    assert np.ptp(columns[5]) > 0.05
    assert np.ptp(columns[2]) < 0.1 * np.ptp(columns[5])
