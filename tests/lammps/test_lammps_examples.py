"""The examples with LAMMPS, with few steps."""

from __future__ import annotations

import re
import subprocess

import numpy as np
import pytest

from .lmp import EXAMPLES, environment, executable, launcher, thermo_tables


@pytest.mark.parametrize("ranks", [1, 2])
def test_in_water(ranks: int) -> None:
    command = [*launcher(ranks), str(executable()), "-in", "in.water", "-log", "none"]
    done = subprocess.run(
        [*command, "-var", "steps", "40"],
        cwd=EXAMPLES,
        env=environment(),
        stdin=subprocess.DEVNULL,  # mpiexec reads it
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hot, free = thermo_tables(done.stdout)
    assert hot["Temp"].min() > 100
    assert np.ptp(free["PotEng"]) > 0.1
    # found: 0.023, limited by the time step
    assert np.ptp(free["TotEng"]) < 0.05 * np.ptp(free["PotEng"])


def test_in_heat_flux() -> None:
    values = {"cells": 2, "steps": 20, "every": 5, "points": 3}
    command = [str(executable()), "-in", "in.heat_flux", "-log", "none"]
    done = subprocess.run(
        [*command, *(word for name in values for word in ("-var", name, str(values[name])))],
        cwd=EXAMPLES,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    flux = thermo_tables(done.stdout)[-1]
    assert np.abs(flux["c_flux[1]"]).max() > 0.0
    found = re.search(r"kappa: (\S+) \+- (\S+) W", done.stdout)
    assert found is not None
    assert np.isfinite(float(found[1]))
    assert float(found[2]) > 0
    assert max(len(word) for word in found.groups()) < 12, "digits that mean nothing"
