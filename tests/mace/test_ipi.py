"""i-PI with all beads in one batch, and with LAMMPS as its client, as the examples have them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.calculators.calculator import InputError
from ase.io import read
from ase.units import Bohr, Hartree

from mdcg import MDCGCalculator

from ..lammps.lmp import environment, executable

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of what the examples need, with three steps."""
    (tmp_path / "output").mkdir()
    (tmp_path / "data").mkdir()
    for name in ("ipi_water.sh", "ipi_water.xml", "ipi_driver.py", "in.ipi"):
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


@pytest.mark.parametrize("client", ["batch", "lammps"])
def test_forces(folder: Path, client: str) -> None:
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


def test_batches_of_beads(folder: Path) -> None:
    """All beads in one batch, one after the other, and batches of a client are one trajectory."""
    xml = folder / "ipi_water.xml"
    direct = xml.read_text()
    found = []
    for size in (4, 1):
        xml.write_text(direct.replace("<batch_size>4<", f"<batch_size>{size}<"))
        done = run(folder, "batch")
        assert done.returncode == 0, done.stdout + done.stderr
        found.append(np.loadtxt(folder / "output" / "ipi.out"))
    name = f"mdcg-test-{os.getpid()}"
    place = f'<ffsocket mode="unix" name="mdcg" pbc="false"><address>{name}</address>'
    place += "<batch_size>2</batch_size></ffsocket>"
    (folder / "output" / "in.xml").write_text(
        re.sub("<ffdirect.*</ffdirect>", place, direct, flags=re.DOTALL)
    )
    scripts = Path(sys.prefix) / "bin"
    options = "template=data/water192.xyz,package=data/water.mdcg"
    client = [str(scripts / "i-pi-driver-py"), *("-u", "-a", name), *("-m", "custom")]
    client += ["-P", "ipi_driver.py", "-o", options]
    with subprocess.Popen([str(scripts / "i-pi"), "in.xml"], cwd=folder / "output") as server:
        try:
            while not Path(f"/tmp/ipi_{name}").exists():
                assert server.poll() is None
                time.sleep(0.1)
            subprocess.run(client, cwd=folder, check=True, timeout=60)
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()
    found.append(np.loadtxt(folder / "output" / "ipi.out"))
    for each in found[1:]:
        np.testing.assert_allclose(each, found[0], rtol=1e-7, atol=1e-7)


def driver_of(template: Path) -> Any:
    """Return the driver of i-PI for the elements of a structure."""
    spec = importlib.util.spec_from_file_location("ipi_driver", EXAMPLES / "ipi_driver.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, module.__DRIVER_CLASS__)
    return made(str(template), str(EXAMPLES / "data" / "water.mdcg"), verbosity=0)


def test_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Structures of a list are one batch, with ASE's results in i-PI's units, which it rounds."""
    atoms = read(EXAMPLES / "data" / "water192.xyz")
    shear = np.array([[1.0, 0.0, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.1]])
    beads = [atoms.copy() for _ in range(3)]
    beads[1].set_cell(atoms.cell.array @ shear, scale_atoms=True)
    beads[2].rattle(0.05, seed=1)
    cells, positions = (
        [bead.cell.array.T / Bohr for bead in beads],
        [b.positions / Bohr for b in beads],
    )
    driver = driver_of(EXAMPLES / "data" / "water192.xyz")
    calls, batch = [], driver.calculator.batch
    monkeypatch.setattr(
        driver.calculator, "batch", lambda *given: calls.append(len(given[0])) or batch(*given)
    )
    together = driver(cells, positions)
    assert calls == [3]
    calc = MDCGCalculator(EXAMPLES / "data" / "water.mdcg")
    for bead, cell, at, result in zip(beads, cells, positions, together, strict=True):
        bead.calc = calc
        energy, forces, virial, text = result
        stress = bead.get_stress(voigt=False) * bead.get_volume()
        assert text == ""
        assert energy == pytest.approx(bead.get_potential_energy() / Hartree, rel=2e-6)
        want = bead.get_forces() * Bohr / Hartree
        np.testing.assert_allclose(forces, want, rtol=0, atol=2e-6 * np.abs(want).max())
        np.testing.assert_allclose(
            virial, -stress / Hartree, rtol=0, atol=2e-6 * np.abs(stress).max()
        )
        alone = driver(cell, at)
        for one, other in zip(alone[:3], result[:3], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-11)
    assert calls == [3]


def test_driver_of_a_molecule(tmp_path: Path) -> None:
    """An open system has no virial."""
    atoms = read(EXAMPLES / "data" / "water192.xyz")[:3]
    atoms.pbc = False
    atoms.write(tmp_path / "molecule.xyz")
    (result,) = driver_of(tmp_path / "molecule.xyz")([np.eye(3) * 30], [atoms.positions / Bohr])
    atoms.calc = MDCGCalculator(EXAMPLES / "data" / "water.mdcg")
    assert result[0] == pytest.approx(atoms.get_potential_energy() / Hartree, rel=2e-6)
    assert not result[2].any()


def test_driver_says_which_bead_is_wrong() -> None:
    driver = driver_of(EXAMPLES / "data" / "water192.xyz")
    cell, positions = driver.atoms.cell.array.T / Bohr, driver.atoms.positions / Bohr
    wrong = positions.copy()
    wrong[0] = np.nan
    with pytest.raises(InputError, match=r"images\[1\]: "):
        driver([cell, cell], [positions, wrong])


@pytest.mark.parametrize(
    ("client", "file", "wrong", "said"),
    [
        ("batch", "ipi_driver.py", "import", "i-pi failed"),
        ("batch", "ipi_driver.py", 'found["energy"]', "i-pi failed"),
        ("lammps", "in.ipi", "units metal", "lmp failed"),
        ("lammps", "ipi_water.xml", "nvt", "i-pi failed"),
    ],
)
def test_neither_waits_for_the_other(
    folder: Path, client: str, file: str, wrong: str, said: str
) -> None:
    (folder / file).write_text((folder / file).read_text().replace(wrong, "broken"))
    done = run(folder, client)
    assert done.returncode == 1
    assert f"ipi_water.sh: {said}, see above\n" in done.stderr
