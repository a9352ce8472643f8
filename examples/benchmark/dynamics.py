"""Molecular dynamics at constant energy: mdcg and Symmetrix-XL in ASE, FastMACE in its own loop."""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator, env
from mdcg.bench import checkpoint
from mdcg.bench.model import Settings, refusal
from mdcg.bench.report import document, write_json
from mdcg.bench.timing import torch_cuda
from mdcg.cli._common import names
from mdcg.cli.bench import add_command

from .programs import missing, symmetrix_calculator, symmetrix_file, tell_skipped

_HELP = """\
Time molecular dynamics at constant energy with a MACE checkpoint in float32: mdcg's package and
Symmetrix-XL in ASE's VelocityVerlet, and FastMACE in its own loop on the device. Milliseconds per
step, with the integrator and neighbour lists; loading, compiling and 200 steps before are not
counted. Use a trained model and a structure near equilibrium: where atoms fly apart, each step
makes a list."""

# Seconds of a step, and bytes of device memory if they are known.
Found = tuple[float, int | None]


@dataclass(frozen=True)
class Run:
    """One run: checkpoint, structure with velocities, device, number of steps, femtoseconds.

    `warm_up` steps come before those that are timed.
    """

    checkpoint: Path
    atoms: Atoms
    device: str
    steps: int
    timestep: float
    warm_up: int = 200


def with_velocities(atoms: Atoms, copies: int) -> Atoms:
    """Return a repeated structure with random velocities of 300 K that leave it where it is."""
    atoms = atoms.repeat((copies,) * 3)
    spread = np.sqrt(units.kB * 300.0 / atoms.get_masses())[:, None]
    velocities = spread * np.random.default_rng(1).normal(size=(len(atoms), 3))
    momenta = velocities * atoms.get_masses()[:, None]
    atoms.set_velocities(velocities - momenta.sum(axis=0) / atoms.get_masses().sum())
    return atoms


def _in_ase(run: Run, calculator: Any) -> Found:
    run.atoms.calc = calculator
    dynamics = VelocityVerlet(run.atoms, run.timestep * units.fs)
    dynamics.run(run.warm_up)
    start = time.perf_counter()
    dynamics.run(run.steps)
    return (time.perf_counter() - start) / run.steps, None


def _mdcg(run: Run) -> Found:
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        model = checkpoint.ready(checkpoint.load(str(run.checkpoint)), "float32", "cpu")
        package = checkpoint.convert(model, Path(folder) / "model.mdcg", Settings())
        calculator = MDCGCalculator(package, device=run.device)
    return _in_ase(run, calculator)


def _symmetrix(run: Run) -> Found:
    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        model = checkpoint.ready(checkpoint.load(str(run.checkpoint)), "float32", "cpu")
        file = symmetrix_file(model, Path(folder) / "model.json", sorted(set(run.atoms.symbols)))
        calculator = symmetrix_calculator(
            file, run.device, "float32", env.threads(), len(run.atoms)
        )
    return _in_ase(run, calculator)


def _fastmace(run: Run) -> Found:
    warnings.simplefilter("ignore")
    import fastmace

    with tempfile.TemporaryDirectory(prefix="mdcg-bench-") as folder:
        found = fastmace.md(
            run.atoms,
            model=str(run.checkpoint),
            trusted=True,
            ensemble="NVE",
            timestep_fs=run.timestep,
            steps=run.warm_up + run.steps,
            output=folder,
        )
    seconds = float(found.simulation.report.speed["seconds_per_step"])
    peak = int(torch_cuda().max_memory_allocated())
    return seconds, peak or None  # 0 if it ran in a process of its own


_PROGRAMS: dict[str, Callable[[Run], Found]] = {
    "mdcg": _mdcg,
    "symmetrix": _symmetrix,
    "fastmace": _fastmace,
}
PROGRAMS = tuple(_PROGRAMS)


def measure(program: str, run: Run) -> dict[str, Any]:
    """Return a row of results: seconds per step, integrator and neighbour lists included.

    Each program runs in a process of its own, since FastMACE changes settings of torch when it is
    imported.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seconds, peak = pool.submit(_PROGRAMS[program], run).result()
    same = dict.fromkeys(("median", "quartile1", "quartile3"), seconds)
    row = {"impl": program, "dtype": "float32", "atoms": len(run.atoms), "steps": run.steps}
    return {**row, "seconds": same, "stress": False, "peak_bytes": peak}


def add_parser(commands: Any) -> None:
    """Add the command ``dynamics``."""
    text = "time dynamics beside Symmetrix-XL and FastMACE"
    add = add_command(commands, "dynamics", text, _HELP, run).add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="of MACE")
    add("structure", type=Path, metavar="STRUCTURE", help="any file that ASE reads")
    add("--copies", type=names, default=["1", "3"], metavar="N,...",
        help="repeats the structure so often along each axis (default 1,3)")  # fmt: skip
    add("--steps", type=int, default=2000, help="default 2000")
    add("--timestep", type=float, default=0.5, help="fs (default 0.5)")
    add("--device", choices=("cpu", "cuda"), default="cuda")
    add("--impl", type=names, metavar="NAME,...", help=", ".join(PROGRAMS))
    add("--json", metavar="FILE", help="write all numbers")


def run(options: argparse.Namespace) -> None:
    """Time each program and print a line for it."""
    if unknown := set(options.impl or ()) - set(PROGRAMS):
        known = ", ".join(PROGRAMS)
        raise ValueError(f"program {unknown.pop()!r} is unknown, expected one of {known}")
    for file in (options.checkpoint, options.structure):
        if not file.is_file():
            raise ValueError(f"{file} does not exist: check the path")
    reasons = {name: missing(name, options.device) for name in PROGRAMS}
    tell_skipped(reasons)
    structure = ase.io.read(options.structure)
    shared = {"model": options.checkpoint.stem, "system": options.structure.stem}
    kept = {"device": options.device, "threads": env.threads() or "all"}
    for name in ("copies", "steps", "timestep"):
        kept[name] = getattr(options, name)
    result = document("dynamics", kept, torch_cuda())
    for copies in options.copies:
        atoms = with_velocities(structure, int(copies))
        task = Run(options.checkpoint, atoms, options.device, options.steps, options.timestep)
        place = {"dtype": "float32", "atoms": len(atoms)}
        for name in options.impl or PROGRAMS:
            if reasons[name] is None:
                try:
                    row = measure(name, task)
                    result["rows"].append({**shared, **row})
                    text = f"{1e3 * row['seconds']['median']:9.4f} ms/step"
                except Exception as error:  # of any kind: it is another program
                    if name == "mdcg":
                        raise
                    one = refusal(name, error)
                    result["refused"].append({**shared, **place, **one})
                    text = one["reason"]
                print(f"{name:10} {len(atoms):>9,} atoms {text}", flush=True)
                if options.json:
                    write_json(options.json, result)
