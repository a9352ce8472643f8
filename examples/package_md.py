"""
Liquid water with a package: molecular dynamics without torch, on a CPU or on a GPU
===================================================================================

Runs 64 molecules of water at constant energy (NVE) with ASE and ``examples/data/water.mdcg``:

    python examples/package_md.py                    # on the CPU
    python examples/package_md.py --device cuda      # on an NVIDIA GPU

and prints temperature, total energy and, at the end, milliseconds per step and which kernels ran.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.md.verlet import VelocityVerlet

from mdcg import MDCGCalculator

DATA = Path(__file__).resolve().parent / "data"

parser = argparse.ArgumentParser(description="NVE of liquid water with a package.")
parser.add_argument("--package", default=DATA / "water.mdcg", help="default: that of the examples")
parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
parser.add_argument("--steps", type=int, default=500, help="default: 500")
chosen = parser.parse_args()

atoms = ase.io.read(DATA / "water192.xyz")
atoms.calc = MDCGCalculator(chosen.package, device=chosen.device)
spread = np.sqrt(atoms.get_masses() * 300 * units.kB)[:, None]
momenta = np.random.default_rng(1).normal(size=(len(atoms), 3)) * spread
atoms.set_momenta(momenta - momenta.mean(axis=0))
atoms.get_forces()  # compiles kernels that are not cached, and makes the neighbour list

dynamics = VelocityVerlet(atoms, timestep=0.5 * units.fs)
start = time.perf_counter()
for done in range(0, chosen.steps, 100):
    print(f"{done:6d} steps: {atoms.get_temperature():5.0f} K, {atoms.get_total_energy():.5f} eV")
    dynamics.run(min(100, chosen.steps - done))
seconds = time.perf_counter() - start
print(f"{1e3 * seconds / chosen.steps:.2f} ms per step")
print(atoms.calc.report())
