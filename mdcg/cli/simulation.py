"""The run of ``mdcg run``: ASE's integrators and optimizers, log, trajectory and plot."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from ase import Atoms, units
from ase.calculators.calculator import CalculationFailed, InputError
from ase.io import write
from ase.io.trajectory import Trajectory
from ase.md.velocitydistribution import MaxwellBoltzmannDistribution, Stationary, ZeroRotation

from .._version import __version__
from ..errors import MissingDependencyError, printable
from ._common import RunError, UsageError, progress_bar, stop_after_step

_HOTTEST = 1e5  # K; a structure that is hotter has fallen apart
_THERMOSTAT_FS, _BAROSTAT_FS = 100.0, 1000.0  # relaxation times
_LABELS = {
    "time_ps": "time (ps)",
    "potential_eV": "potential energy (eV)",
    "kinetic_eV": "kinetic energy (eV)",
    "total_eV": "total energy (eV)",
    "temperature_K": "temperature (K)",
    "pressure_bar": "pressure (bar)",
    "volume_A3": "volume (Å³)",
    "fmax_eV/A": "largest force (eV/Å)",
}


def simulate(atoms: Atoms, options: argparse.Namespace, files: dict[str, Path]) -> str:
    """Run, write the files and return a summary.

    The files of an earlier run stay as they are until the first evaluation has succeeded.
    """
    with _one_sentence(options, "nothing was written", moving=False):
        atoms.get_forces()
        velocities = "" if options.relax else _start(atoms, options)
        dynamics, how = _relaxation(atoms, options) if options.relax else _dynamics(atoms, options)
    held = printable(", ".join(map(str, files.values())))
    started = time.perf_counter()
    with _Record(atoms, options, files) as record:
        record.head(f"{how}{velocities}")
        try:
            with (
                _one_sentence(options, f"{held} hold the steps until then", moving=True),
                stop_after_step() as stop,
            ):
                converged = _run(dynamics, options, record, stop)
        except KeyboardInterrupt:
            options.if_stopped = f" after step {record.step}: {held} hold the steps until then"
            raise
        finally:
            record.plot(files["plot"])
    return _summary(options, record, converged, time.perf_counter() - started, held)


def _run(dynamics: Any, options: argparse.Namespace, record: _Record, stop: Any) -> bool:
    """Run to the end, or until a signal asks to stop; return whether a relaxation converged."""
    more = {"fmax": options.fmax} if options.relax else {}
    converged = False
    with closing(progress_bar(options.steps, "step")) as bar:
        for step, converged in enumerate(dynamics.irun(steps=options.steps, **more)):
            last = step == options.steps or (options.relax and converged) or stop.number
            if last or step % options.interval == 0:
                record.write(step)
                bar.set_postfix_str(record.state(), refresh=False)
            bar.update(1 if step else 0)
            if last:
                break
    return bool(converged)


@contextmanager
def _one_sentence(options: argparse.Namespace, end: str, *, moving: bool) -> Iterator[None]:
    """Turn errors about the structure, as it was read or `moving`, into errors of the command."""
    try:
        yield
    except (InputError, NotImplementedError, CalculationFailed) as error:
        if not (moving or isinstance(error, CalculationFailed)):
            raise UsageError(f"{options.structure}: {error}; {end}") from error
        helps = "; a shorter --timestep or --relax beforehand may help"
        raise RunError(
            f"no energy for {options.structure} ({error}): {end}"
            f"{helps if moving and options.md else ''}"
        ) from error


def _start(atoms: Atoms, options: argparse.Namespace) -> str:
    """Give the atoms velocities, unless they have some; return what was done."""
    if atoms.get_momenta().any():
        return ", velocities of the structure"
    rng = np.random.default_rng(options.seed)
    MaxwellBoltzmannDistribution(atoms, temperature_K=options.temperature, rng=rng)
    if len(atoms) > 1 and not atoms.constraints:
        Stationary(atoms)
        if len(atoms) > 2 and not atoms.pbc.any():
            ZeroRotation(atoms)
    return f", velocities drawn for {options.temperature:g} K with seed {options.seed}"


def _dynamics(atoms: Atoms, options: argparse.Namespace) -> tuple[Any, str]:
    """Return the integrator, and its description."""
    step = options.timestep * units.fs
    how = f"{options.md}, time step {options.timestep:g} fs"
    if options.md == "nve":
        from ase.md.verlet import VelocityVerlet

        return VelocityVerlet(atoms, step), how
    how += f", {options.temperature:g} K"
    thermostat = _THERMOSTAT_FS * units.fs
    try:
        if options.md == "nvt":
            from ase.md.bussi import Bussi

            rng = np.random.default_rng([options.seed, 1])  # apart from the velocities'
            return Bussi(atoms, step, options.temperature, thermostat, rng=rng), how
        from ase.md.nose_hoover_chain import IsotropicMTKNPT
    except ImportError as error:
        raise MissingDependencyError(
            f"--md {options.md} needs ASE 3.25 or newer: pip install --upgrade ase"
        ) from error
    except ValueError as error:
        raise UsageError(f"{options.structure} cannot have a temperature: {error}") from error
    npt = IsotropicMTKNPT(
        atoms, step, options.temperature, options.pressure * units.bar, tdamp=thermostat,
        pdamp=_BAROSTAT_FS * units.fs,
    )  # fmt: skip
    return npt, f"{how}, {options.pressure:g} bar"


def _relaxation(atoms: Atoms, options: argparse.Namespace) -> tuple[Any, str]:
    """Return the optimizer, and its description."""
    from ase.filters import FrechetCellFilter
    from ase.optimize import LBFGS

    optimizer: Any = LBFGS  # its annotations lack filters, and no log
    how = f"relaxation (LBFGS) to forces below {options.fmax:g} eV/Å"
    if not options.cell:
        return optimizer(atoms, logfile=None), how
    with_cell = FrechetCellFilter(atoms, scalar_pressure=options.pressure * units.bar)
    return optimizer(with_cell, logfile=None), f"{how}, with the cell at {options.pressure:g} bar"


class _Record:
    """Log and trajectory of a run, which are open until its end, and numbers for the plot."""

    def __init__(self, atoms: Atoms, options: argparse.Namespace, files: dict[str, Path]) -> None:
        self._atoms, self._options = atoms, options
        self._with_cell = options.cell or options.md == "npt"
        energies = ["time_ps", "potential_eV", "kinetic_eV", "total_eV", "temperature_K"]
        self._names = ["potential_eV", "fmax_eV/A"] if options.relax else energies
        self._names += ["pressure_bar", "volume_A3"] if self._with_cell else []
        self.rows: list[dict[str, float]] = []
        self.step = 0
        self._log: TextIO = files["log"].open("w" if options.overwrite else "x", encoding="utf-8")
        self._trajectory: Any
        if options.format == "traj":
            self._trajectory = Trajectory(str(files["trajectory"]), "w")
        else:
            self._trajectory = files["trajectory"].open("w", encoding="utf-8")

    def __enter__(self) -> _Record:
        return self

    def __exit__(self, *error: object) -> None:
        self._log.close()
        self._trajectory.close()

    def head(self, how: str) -> None:
        """Write the start of the log."""
        options, calculator = self._options, self._atoms.calc
        stated = ", ".join(f"{name} = {value}" for name, value in options.stated.items())
        lines = [
            f"mdcg {__version__}, {options.model} ({calculator.dtype}, {calculator.device})",
            f"{options.structure}: {len(self._atoms)} atoms, {self._atoms.get_chemical_formula()}",
            how,
            *([f"inputs: {stated}"] if stated else []),
            " ".join(f"{name:>16}" for name in ("step", *self._names))[2:],
        ]
        self._log.write("".join(f"# {printable(line)}\n" for line in lines))

    def write(self, step: int) -> None:
        """Write a line of the log and a frame."""
        atoms, self.step = self._atoms, step
        row = {"potential_eV": atoms.get_potential_energy()}
        if self._options.relax:
            row["fmax_eV/A"] = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
        else:
            row["time_ps"] = 1e-3 * step * self._options.timestep
            row["kinetic_eV"] = atoms.get_kinetic_energy()
            row["total_eV"] = row["potential_eV"] + row["kinetic_eV"]
            row["temperature_K"] = atoms.get_temperature()
        if self._with_cell:
            stress = atoms.get_stress(include_ideal_gas=not self._options.relax)
            row["pressure_bar"] = -stress[:3].mean() / units.bar
            row["volume_A3"] = atoms.get_volume()
        self.rows.append(row)
        numbers = (f"{row[name]:16.8g}" for name in self._names)
        self._log.write(" ".join([f"{step:16d}", *numbers]) + "\n")
        self._log.flush()
        if self._options.format == "traj":
            self._trajectory.write(atoms)
        else:
            write(self._trajectory, atoms, format="extxyz")
            self._trajectory.flush()

    def state(self) -> str:
        """Return the last energy and temperature, or force, for the progress bar."""
        row = self.rows[-1]
        if self._options.relax:
            return f"{row['potential_eV']:.4f} eV, {row['fmax_eV/A']:.3f} eV/Å"
        return f"{row['total_eV']:.4f} eV, {row['temperature_K']:.0f} K"

    def column(self, name: str) -> list[float]:
        """Return all values of one quantity."""
        return [row[name] for row in self.rows]

    def plot(self, path: Path) -> None:
        """Draw energy and temperature, or force, and what else changes, over time or steps."""
        from matplotlib.figure import Figure

        if not self.rows:
            return
        shown = ["total_eV", "temperature_K"]
        axis = self.column("time_ps") if not self._options.relax else range(len(self.rows))
        label = _LABELS["time_ps"]
        if self._options.relax:
            shown, label = ["potential_eV", "fmax_eV/A"], "step"
            axis = [step * self._options.interval for step in axis]
            axis = [*axis[:-1], self.step]
        shown += ["pressure_bar", "volume_A3"] if self._with_cell else []
        figure = Figure(figsize=(7, 2.2 * len(shown)), layout="constrained")
        for axes, name in zip(figure.subplots(len(shown), sharex=True), shown, strict=True):
            axes.plot(axis, self.column(name), color="#2a6fb0", linewidth=1.2)
            if name == "total_eV":
                axes.plot(axis, self.column("potential_eV"), color="0.6", linewidth=1.0)
                axes.legend(["total", "potential"], frameon=False)
            axes.ticklabel_format(axis="y", useOffset=False)
            axes.set_ylabel("energy (eV)" if name == "total_eV" else _LABELS[name])
        axes.set_xlabel(label)
        figure.suptitle(f"{self._options.structure.name}, {len(self._atoms)} atoms")
        figure.savefig(path, dpi=150)


def _summary(
    options: argparse.Namespace, record: _Record, converged: bool, seconds: float, held: str
) -> str:
    """Return what came out; raise RunError if the structure is not relaxed."""
    row = record.rows[-1]
    if options.relax:
        what = f"largest force {row['fmax_eV/A']:.3g} eV/Å, energy {row['potential_eV']:.6f} eV"
        if options.cell:
            what += f", pressure {row['pressure_bar']:.0f} bar"
        if not converged:
            raise RunError(
                f"{options.structure} is not relaxed after {record.step} steps ({what}): {held} "
                "hold them; continue from the last frame, or give more --steps"
            )
        return f"relaxed in {record.step} steps: {what}; wrote {held}"
    hottest = max(record.column("temperature_K"))
    if not hottest < _HOTTEST:
        raise RunError(
            f"{options.structure} fell apart: its temperature reached {hottest:.3g} K; {held} hold "
            "the steps; a shorter --timestep or --relax beforehand may help"
        )
    found = f"mean temperature {np.mean(record.column('temperature_K')):.0f} K"
    if options.md == "nve":
        change = 1e3 * (row["total_eV"] - record.rows[0]["total_eV"]) / len(record._atoms)
        found += f", total energy changed by {change:.2g} meV per atom"
    if options.md == "npt":
        found += f", mean pressure {np.mean(record.column('pressure_bar')):.0f} bar"
        found += f", mean volume {np.mean(record.column('volume_A3')):.6g} Å³"
    return (
        f"{record.step} steps of {options.timestep:g} fs in {seconds:.1f} s "
        f"({1e3 * seconds / record.step:.3g} ms each): {found}; wrote {held}"
    )
