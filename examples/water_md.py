"""
Liquid water: the original checkpoint, the patched one and the engine, side by side
==================================================================================

Runs molecular dynamics at constant energy (NVE) of a box of 64 water molecules three times, from
the same start: with the checkpoint as it was trained ("original"), with the PyTorch model whose
layers ``mdcg-patch`` has replaced ("patched"), and with the package that mdcg's own engine
evaluates without PyTorch ("engine"). The engine is the one to use unless the model is to be trained
or changed. The three take turns, so that whatever else the machine does slows down all of them. At
the end the script prints the time per step, the drift of the total energy and the largest
difference of forces, plots the O-O radial distribution functions, and leaves a trajectory for
``ase gui``.

``bash examples/quickstart.sh`` installs what this needs, and runs it:

    python examples/water_md.py

It patches and converts the checkpoint itself where ``--patched`` and ``--package`` name no files.
Everything follows from ``--seed``; the same machine gives the same trajectory again.

The checkpoints in ``examples/data`` are a small MACE model (``water.model``, 16x0e+16x1o, r_max
4.5 Å, float64) and a small NequIP model (``water.ckpt``, 3 layers, 16x0e+16x1o+8x2e, r_max 4.5 Å,
float64; ``bash examples/quickstart.sh nequip``) of a flexible three-site force field. They are
there to be small and stable, not to be accurate for water.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms, units
from ase.geometry.rdf import get_rdf
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet
from tqdm import tqdm

from mdcg import MDCGCalculator, unpatch_model
from mdcg.cli.patch import main as mdcg_patch
from mdcg.patch import is_patched, load_model

HERE = Path(__file__).resolve().parent
NAMES = ("original", "patched", "engine")
ALLOCATOR = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


# %%
# What can be chosen
# ------------------
def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="NVE of liquid water with the original, the patched model and the engine."
    )
    add = parser.add_argument
    add("--original", type=Path, default=HERE / "data" / "water.model", help="checkpoint")
    add("--patched", type=Path, help="the model that mdcg-patch has patched")
    add("--package", type=Path, help="the package that mdcg-patch has made of the checkpoint")
    add("--structure", type=Path, default=HERE / "data" / "water192.xyz", help="where to start")
    add("--steps", type=int, default=500, help="steps with each model (default: %(default)s)")
    add("--timestep", type=float, default=0.5, help="in fs (default: %(default)s)")
    add(
        "--temperature", type=float, default=300.0, help="at the start, in K (default: %(default)s)"
    )
    add("--seed", type=int, default=1, help="of the velocities (default: %(default)s)")
    add("--every", type=int, default=10, help="steps between stored frames (default: %(default)s)")
    add("--out", type=Path, default=HERE / "output", help="folder for results")
    add("--no-progress", action="store_true", help="show no progress bar")
    chosen = parser.parse_args(arguments)
    if chosen.steps < 1 or chosen.every < 1:
        parser.error("--steps and --every must be at least 1")
    for path in (chosen.original, chosen.structure, chosen.patched, chosen.package):
        if path is not None and not path.exists():
            parser.error(f"{path} does not exist: give another file, or leave the option out")
    chosen.out.mkdir(parents=True, exist_ok=True)
    chosen.patched = chosen.patched or made(chosen, "_patched.pt")
    chosen.package = chosen.package or made(chosen, ".mdcg")
    return chosen


def made(chosen: argparse.Namespace, ending: str) -> Path:
    """Patch or convert the checkpoint, as the command mdcg-patch does."""
    output = chosen.out / f"{chosen.original.stem}{ending}"
    print(f"mdcg-patch {chosen.original} -o {output}", flush=True)
    if mdcg_patch([str(chosen.original), "-o", str(output), "--force", "--quiet"]) != 0:
        sys.exit("mdcg-patch failed, see above")
    return output


# %%
# The start
# ---------
# The structure is a snapshot of the liquid at 300 K; velocities are random.
def heat_up(atoms: Atoms, temperature: float, seed: int) -> None:
    """Draw velocities from the Maxwell-Boltzmann distribution and stop the drift of the whole."""
    rng = np.random.default_rng(seed)
    masses = atoms.get_masses()[:, None]
    velocities = rng.normal(size=(len(atoms), 3)) * np.sqrt(units.kB * temperature / masses)
    velocities -= (masses * velocities).sum(axis=0) / masses.sum()
    atoms.set_velocities(velocities)


# %%
# One run
# -------
# All go through the same calculator, so that only the models differ.
class Run:
    """Constant-energy dynamics with one model, with its times, energies and frames."""

    def __init__(self, start: Atoms, calculator: MDCGCalculator, timestep: float) -> None:
        self.atoms = start.copy()
        self.atoms.calc = calculator
        self.dynamics = VelocityVerlet(self.atoms, timestep * units.fs)
        self.seconds: list[float] = []
        self.energies = [self.atoms.get_total_energy() / len(start)]
        self.temperatures = [self.atoms.get_temperature()]
        self.frames: list[Atoms] = []

    def step(self) -> None:
        begin = time.perf_counter()
        self.dynamics.step()
        self.seconds.append(time.perf_counter() - begin)
        self.energies.append(self.atoms.get_total_energy() / len(self.atoms))
        self.temperatures.append(self.atoms.get_temperature())

    def summary(self, timestep: float) -> dict[str, float]:
        energies = 1e3 * np.array(self.energies)
        picoseconds = np.arange(len(energies)) * timestep * 1e-3
        low, median, high = np.percentile(1e3 * np.array(self.seconds), [25, 50, 75])
        return {
            "ms_per_step": float(median),
            "ms_per_step_lower_quartile": float(low),
            "ms_per_step_upper_quartile": float(high),
            "drift_meV_per_atom_per_ps": float(np.polyfit(picoseconds, energies, 1)[0]),
            "energy_rms_meV_per_atom": float(np.std(energies)),
            "mean_temperature_K": float(np.mean(self.temperatures)),
        }


def run_all(options: argparse.Namespace, start: Atoms) -> dict[str, Run]:
    """Run the models in turns of `every` steps."""
    original, patched = load_model(options.original), load_model(options.patched)
    if is_patched(original) or not is_patched(patched):
        sys.exit("--original must be the checkpoint before mdcg-patch, and --patched the one after")
    calculators = {
        "original": MDCGCalculator(original),
        "patched": MDCGCalculator(patched),
        "engine": MDCGCalculator(options.package),
    }
    unpatch_model(original)  # the calculator has patched it in place
    if options.package.suffix != ".mdcg":
        sys.exit(f"--package is {options.package}, expected a package: mdcg-patch IN -o OUT.mdcg")
    for calculator in calculators.values():
        for shift in range(3):  # the first calls compile TorchScript and load kernels
            warm = start.copy()
            warm.rattle(1e-3, seed=shift)
            calculator.get_forces(warm)
    runs = {name: Run(start, calc, options.timestep) for name, calc in calculators.items()}
    bar = tqdm(
        total=len(runs) * options.steps,
        desc="NVE, three models",
        unit="step",
        mininterval=0.2 if sys.stderr.isatty() else 10.0,
        disable=options.no_progress,
    )
    with bar, Trajectory(options.out / "water.traj", "w") as trajectory:
        for done in range(0, options.steps, options.every):
            for name, run in runs.items():
                for _ in range(min(options.every, options.steps - done)):
                    run.step()
                    bar.update()
                run.frames.append(run.atoms.copy())
                if name == "engine":
                    trajectory.write(run.atoms)
    return runs


# %%
# What came out
# -------------
def largest_force_difference(original: Run, other: Run) -> float:
    """Compare two models on frames of the second run, in eV/Å."""
    frames = other.frames[:: max(1, len(other.frames) // 10)]
    forces = [
        original.atoms.calc.get_forces(frame) - other.atoms.calc.get_forces(frame)
        for frame in frames
    ]
    return float(np.abs(forces).max())


def speedup(original: dict[str, float], other: dict[str, float]) -> float | None:
    """Return the ratio of the medians, or None where the machine was too busy to tell."""
    for each in (original, other):
        if each["ms_per_step_upper_quartile"] > 1.5 * each["ms_per_step_lower_quartile"]:
            return None
    return original["ms_per_step"] / other["ms_per_step"]


def oxygen_rdf(frames: list[Atoms]) -> tuple[np.ndarray, np.ndarray]:
    """Return r in Å and g(r) of the oxygen atoms, averaged over frames."""
    g, r = [], np.zeros(0)
    for frame in frames:
        oxygen = frame[frame.symbols == "O"]
        distances = oxygen.get_all_distances(mic=True)
        one, r = get_rdf(oxygen, rmax=6.0, nbins=75, distance_matrix=distances)
        g.append(one)
    return r, np.mean(g, axis=0)


def plot(runs: dict[str, Run], results: dict, timestep: float, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    # the curves agree: one is a line, the others are markers at different points of it
    styles = (
        {"color": "0.45", "linewidth": 1.0},
        {"color": "#2a6fb0", "linestyle": "", "marker": "o", "fillstyle": "none"},
        {"color": "#c8402f", "linestyle": "", "marker": "x"},
    )
    for number, ((name, run), style) in enumerate(zip(runs.items(), styles, strict=True)):
        label = f"{name}, {results[name]['ms_per_step']:.1f} ms per step"
        energies = 1e3 * (np.array(run.energies) - run.energies[0])
        times = np.arange(len(energies)) * timestep * 1e-3
        for axes, x, y in ((right, times, energies), (left, *oxygen_rdf(run.frames))):
            each = max(1, len(x) // 25)
            shown = (number * each // 2 % each, each)
            axes.plot(x, y, markevery=shown, label=label if axes is left else None, **style)
    left.axhline(1.0, color="0.8", linewidth=0.8, zorder=0)
    left.set(xlabel="r (Å)", ylabel="$g_{OO}(r)$", title="Oxygen-oxygen radial distribution")
    right.set(xlabel="t (ps)", ylabel="E(t) - E(0) (meV per atom)", title="Total energy")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    threads = torch.get_num_threads()
    figure.suptitle(
        f"Water, {len(runs['engine'].atoms)} atoms at constant energy, "
        f"{len(runs['engine'].seconds)} steps of {timestep:g} fs, "
        f"{threads} thread{'s' if threads > 1 else ''}"
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def report(results: dict) -> str:
    rows = [
        ("time per step (median)", "ms", "ms_per_step", ".2f"),
        ("  lower quartile", "ms", "ms_per_step_lower_quartile", ".2f"),
        ("  upper quartile", "ms", "ms_per_step_upper_quartile", ".2f"),
        ("  times as fast as the original", "x", "speedup", ".1f"),
        ("energy drift", "meV/atom/ps", "drift_meV_per_atom_per_ps", ".4f"),
        ("energy fluctuation (rms)", "meV/atom", "energy_rms_meV_per_atom", ".4f"),
        ("mean temperature", "K", "mean_temperature_K", ".1f"),
        ("largest difference of forces", "eV/Å", "max_force_difference", ".1e"),
        ("largest distance at the end", "Å", "max_distance", ".1e"),
    ]
    lines = ["".join([f"{'':40s}", *(f"{name:>12s}" for name in NAMES)])]
    for text, unit, key, form in rows:
        found = [results[name] for name in NAMES]
        values = [format(each[key], form) if each.get(key) is not None else "" for each in found]
        lines.append("".join([f"{text + ', ' + unit:40s}", *(f"{each:>12s}" for each in values)]))
    return "\n".join(lines)


# %%
# All of it
# ---------
def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    tuned = {name: os.environ[name] for name in ALLOCATOR if name in os.environ}
    allocator = (
        "tuned for all models: " + " ".join(f"{name}={value}" for name, value in tuned.items())
        if len(tuned) == len(ALLOCATOR)
        else "as it is, for all models (quickstart.sh tunes it, which helps the original more)"
    )
    start = ase.io.read(options.structure)
    heat_up(start, options.temperature, options.seed)
    print(
        f"{options.structure.name}: {len(start)} atoms, {options.steps} steps of "
        f"{options.timestep:g} fs, NVE from {options.temperature:g} K, seed {options.seed}, "
        f"threads: {torch.get_num_threads()}\nallocator: {allocator}"
    )
    runs = run_all(options, start)
    results = {name: run.summary(options.timestep) for name, run in runs.items()}
    original = runs["original"]
    for name in NAMES[1:]:
        difference = original.atoms.positions - runs[name].atoms.positions
        results[name] |= {
            "speedup": speedup(results["original"], results[name]),
            "max_force_difference": largest_force_difference(original, runs[name]),
            "max_distance": float(np.linalg.norm(difference, axis=1).max()),
        }
    results |= {
        "steps": options.steps,
        "seed": options.seed,
        "threads": torch.get_num_threads(),
        "allocator": tuned,
    }
    print(report(results))
    if None in (results[name]["speedup"] for name in NAMES[1:]):
        print("no ratio where the quartiles are far apart: stop what else runs on this machine")
    plot(runs, results, options.timestep, options.out / "water_rdf.png")
    (options.out / "water.json").write_text(json.dumps(results, indent=2) + "\n")
    print(
        f"wrote {options.out / 'water_rdf.png'} and {options.out / 'water.json'}\n"
        f"see the run of the engine with:  ase gui {options.out / 'water.traj'}"
    )


if __name__ == "__main__":
    main()
