"""
Phonons of ice
==============

Relaxes a crystal of ice, whose primitive cell has two molecules, and finds its phonons in two ways:
those that all cells share from ``calc.get_hessian`` of the primitive cell, and those of other wave
vectors from a supercell with ``ase.phonons``. Both must agree at the point G, where the wave vector
is zero, and the frequencies of the three acoustic modes there must be zero. Imaginary frequencies
are printed as negative numbers; a stable crystal has none.

    python examples/phonons.py

This takes a few seconds. The package must be in float64.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import ase.io
import numpy as np
from ase import units
from ase.dft.kpoints import monkhorst_pack
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS
from ase.phonons import Phonons

from mdcg import MDCGCalculator

DATA = Path(__file__).resolve().parent / "data"


def mode_energies(hessian: np.ndarray, masses: np.ndarray) -> np.ndarray:
    """Return the energies of the modes in eV, from a Hessian in eV/Å^2 and masses in u."""
    each = np.repeat(masses, 3)
    squares = np.linalg.eigvalsh(hessian / np.sqrt(np.outer(each, each)))
    hbar = units._hbar * units.J * units.s
    return hbar * np.sign(squares) * np.sqrt(np.abs(squares))


def in_wave_numbers(energies: np.ndarray) -> str:
    return " ".join(f"{energy / units.invcm:.2f}" for energy in energies)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Phonons of ice, from a package.")
    add = parser.add_argument
    add("--package", type=Path, default=DATA / "water.mdcg", help="default: %(default)s")
    add("--structure", type=Path, default=DATA / "ice.xyz", help="default: %(default)s")
    add("--cells", type=int, default=3, help="of the supercell along each axis")
    options = parser.parse_args(arguments)

    crystal = ase.io.read(options.structure)
    crystal.calc = MDCGCalculator(options.package)
    BFGS(FrechetCellFilter(crystal), logfile=None).run(fmax=1e-4, steps=500)
    print(f"{options.structure.name}: {len(crystal)} atoms in {crystal.get_volume():.3f} Å^3")

    hessian = crystal.calc.get_hessian(crystal)
    moved = np.abs(hessian.reshape(-1, len(crystal), 3).sum(axis=1)).max()
    print(f"force constants of the whole crystal, which should be zero: {moved:.1e} eV/Å^2")
    print("frequencies in cm^-1")
    print(f"Hessian  {in_wave_numbers(mode_energies(hessian, crystal.get_masses()))}")

    with tempfile.TemporaryDirectory() as folder:
        supercell = (options.cells,) * 3
        phonons = Phonons(crystal, crystal.calc, supercell, name=f"{folder}/phonons", delta=1e-3)
        phonons.run()
        phonons.read()
    for name, point in crystal.cell.bandpath(npoints=0).special_points.items():
        print(f"{name:8s} {in_wave_numbers(phonons.band_structure([point])[0])}")
    energies = phonons.band_structure(monkhorst_pack((8, 8, 8)))
    print(f"zero-point energy: {0.5 * energies.sum(axis=1).mean():.4f} eV")


if __name__ == "__main__":
    main()
