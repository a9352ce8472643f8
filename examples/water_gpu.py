"""
Liquid water on a GPU
=====================

Molecular dynamics at constant energy (NVE) with a package on a CUDA device: the engine of mdcg
alone, neither torch nor MACE is needed. At the end it prints the time per step, the drift of the
total energy and where the kernels came from.

    python examples/water_gpu.py --device cuda     # or --package FILE.mdcg

The first run compiles kernels for the card, for some seconds; they are kept in mdcg's cache. With
``--device cpu`` the same package runs on the CPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import Atoms, units
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator

DATA = Path(__file__).resolve().parent / "data"


def main(arguments: list[str] | None = None) -> None:
    """Run the dynamics and say how it went."""
    parser = argparse.ArgumentParser(description="NVE of liquid water on a CUDA device.")
    add = parser.add_argument
    add("--package", type=Path, default=DATA / "water.mdcg", help="made by mdcg-patch")
    add("--structure", type=Path, default=DATA / "water192.xyz", help="any file that ASE reads")
    add("--copies", type=int, default=3, help="repeats the box so often along each axis")
    add("--device", default="cuda", help="cuda, cuda:N or cpu")
    add("--steps", type=int, default=1000, help="of 0.5 fs")
    options = parser.parse_args(arguments)

    atoms: Atoms = ase.io.read(options.structure)
    atoms = atoms.repeat((options.copies,) * 3)
    atoms.calc = MDCGCalculator(options.package, device=options.device)
    spread = np.sqrt(units.kB * 300 / atoms.get_masses())[:, None]  # of velocities at 300 K
    velocities = spread * np.random.default_rng(1).normal(size=(len(atoms), 3))
    atoms.set_velocities(velocities - velocities.mean(axis=0))
    dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)

    before = atoms.get_total_energy()  # compiles and loads the kernels
    start = time.perf_counter()
    dynamics.run(options.steps)
    milliseconds = 1e3 * (time.perf_counter() - start) / options.steps
    drift = (atoms.get_total_energy() - before) / len(atoms)
    print(atoms.calc.report())
    print(f"{len(atoms)} atoms: {milliseconds:.2f} ms per step")
    print(f"drift of the total energy: {1e3 * drift:+.4f} meV per atom")


if __name__ == "__main__":
    main()
