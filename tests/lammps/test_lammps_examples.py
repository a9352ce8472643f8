"""The examples with LAMMPS, with few steps."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .lmp import EXAMPLES, environment, executable, launcher, thermo_tables


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_water(ranks: int) -> None:
    command = [*launcher(ranks), str(executable()), "-in", "in.water", "-log", "none"]
    done = subprocess.run(
        [*command, "-var", "steps", "40"],
        cwd=EXAMPLES,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hot, free = thermo_tables(done.stdout)
    assert hot["Temp"].min() > 100
    assert abs(free["TotEng"] - free["TotEng"][0]).max() < 0.03
    assert abs(free["PotEng"] - free["PotEng"][0]).max() > 0.1


@pytest.mark.timeout(300)
def test_three_commands() -> None:
    for name in ("mace", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: checkpoints cannot be read")
    if not (Path(sys.executable).parent / "mdcg-patch").is_file():
        pytest.skip("mdcg is not installed, only in the tree")
    done = subprocess.run(
        ["bash", str(EXAMPLES / "checkpoint_to_lammps.sh"), "10"],
        env=os.environ | {"PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(thermo_tables(done.stdout)) == 2
