"""Molecular dynamics at constant energy: packages in ASE, and checkpoints in FastMACE."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units

_WARM_UP = 200  # steps before those that are timed


@dataclass(frozen=True)
class Run:
    """One run: checkpoint, structure with velocities, device, number of steps, femtoseconds."""

    checkpoint: Path
    atoms: Atoms
    device: str
    steps: int
    timestep: float


def with_velocities(atoms: Atoms, copies: int, temperature: float) -> Atoms:
    """Return a repeated structure with random velocities that leave it where it is."""
    atoms = atoms.repeat((copies,) * 3)
    spread = np.sqrt(units.kB * temperature / atoms.get_masses())[:, None]
    velocities = spread * np.random.default_rng(1).normal(size=(len(atoms), 3))
    momenta = velocities * atoms.get_masses()[:, None]
    atoms.set_velocities(velocities - momenta.sum(axis=0) / atoms.get_masses().sum())
    return atoms


def _mdcg(run: Run) -> float:
    from ase.md.verlet import VelocityVerlet

    from mdcg import MDCGCalculator
    from mdcg.bench.checkpoint import convert, load, ready
    from mdcg.bench.model import Settings

    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        model = ready(load(str(run.checkpoint)), "float32", "cpu")
        package = convert(model, Path(folder) / "model.mdcg", Settings())
        run.atoms.calc = MDCGCalculator(package, device=run.device)
    dynamics = VelocityVerlet(run.atoms, run.timestep * units.fs)
    dynamics.run(_WARM_UP)
    start = time.perf_counter()
    dynamics.run(run.steps)
    return (time.perf_counter() - start) / run.steps


def _fastmace(run: Run) -> float:
    warnings.simplefilter("ignore")
    import fastmace

    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        found = fastmace.md(
            run.atoms,
            model=str(run.checkpoint),
            trusted=True,
            ensemble="NVE",
            timestep_fs=run.timestep,
            steps=_WARM_UP + run.steps,
            output=folder,
        )
    return float(found.simulation.report.speed["seconds_per_step"])


_PROGRAMS: dict[str, Callable[[Run], float]] = {"mdcg": _mdcg, "fastmace": _fastmace}
PROGRAMS = tuple(_PROGRAMS)


def missing(program: str, device: str) -> str | None:
    """Return why a program cannot run, or None."""
    if program == "fastmace" and device == "cpu":
        return "it runs on CUDA devices only"
    if program == "fastmace" and not find_spec("fastmace"):
        return "fastmace is not installed"
    return None


def measure(program: str, run: Run) -> dict[str, Any]:
    """Return a row of results: seconds per step, integrator and neighbour lists included.

    Each program runs in a process of its own, since FastMACE changes settings of torch when it is
    imported.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seconds = pool.submit(_PROGRAMS[program], run).result()
    row = {"impl": program, "dtype": "float32", "atoms": len(run.atoms), "steps": run.steps}
    return {**row, "seconds": {"median": seconds}, "peak_bytes": None}
