"""
A vacancy hops in copper
========================

Finds the path and the barrier for an atom that moves into a vacancy beside it, with ASE's nudged
elastic band (NEB) and climbing image. Both ends are the same crystal, so they have the same energy.
The Hessian of the highest image shows that it is a saddle point: the energy falls along exactly one
direction.

    python examples/neb.py

This takes a few seconds. One batch evaluates all images of a step, which uses a GPU better. With
``--single`` each image has its own calculator and is evaluated alone: the results are the same, and
so is the time on one core of a CPU. The path is written to ``examples/output/neb.traj``, for ``ase
gui``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from ase.filters import FrechetCellFilter
from ase.mep import NEB
from ase.optimize import BFGS

from mdcg import MDCGCalculator

HERE = Path(__file__).resolve().parent


class Evaluated(SinglePointCalculator):
    """Results of an image, valid while positions and cell stay. ASE's own class compares all."""

    def check_state(self, atoms: Atoms, tol: float = 0.0) -> list[str]:
        same = np.array_equal(atoms.positions, self.atoms.positions)
        return [] if same and np.array_equal(atoms.cell, self.atoms.cell) else ["positions", "cell"]


class BatchNEB(NEB):
    """A band of images that a calculator evaluates together, in one batch for each step."""

    def __init__(self, images: list[Atoms], calculator: MDCGCalculator, **options: Any) -> None:
        super().__init__(images, **options)
        self.calculator = calculator
        for image in images:
            image.calc = None

    def get_forces(self) -> Any:
        """Evaluate the images that have moved, and let ASE find the forces along the band."""
        moved = [image for image in self.images if not image.calc or image.calc.check_state(image)]
        for image, found in zip(moved, self.calculator.batch(moved), strict=True):
            image.calc = Evaluated(image, energy=found["energy"], forces=found["forces"])
        return super().get_forces()


def ends_of_the_hop(crystal: Atoms, fmax: float) -> tuple[Atoms, Atoms]:
    """Return the relaxed `crystal` without atom 0, before and after a neighbour takes its place."""
    distances = crystal.get_all_distances(mic=True)[0]
    neighbor = int(np.argmin(np.where(distances > 0.0, distances, np.inf)))
    before, after = crystal.copy(), crystal.copy()
    after.positions[neighbor] += crystal.get_distance(neighbor, 0, mic=True, vector=True)
    for atoms in (before, after):
        del atoms[0]
        atoms.calc = crystal.calc
        BFGS(atoms, logfile=None).run(fmax=fmax, steps=300)
    return before, after


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Barrier of a vacancy that hops in copper.")
    add = parser.add_argument
    add("--package", type=Path, default=HERE / "data" / "copper.mdcg", help="default: %(default)s")
    add("--cells", type=int, default=2, help="of the crystal along each axis")
    add("--images", type=int, default=7, help="odd, both ends included (default: %(default)s)")
    add("--fmax", type=float, default=0.02, help="in eV/Å (default: %(default)s)")
    add("--single", action="store_true", help="one image after the other, not all in one batch")
    add("--out", type=Path, default=HERE / "output", help="folder for the path")
    options = parser.parse_args(arguments)

    calculator = MDCGCalculator(options.package)
    cell = bulk("Cu", cubic=True)
    cell.calc = calculator
    BFGS(FrechetCellFilter(cell), logfile=None).run(fmax=options.fmax / 10)
    crystal = cell * ((options.cells,) * 3)
    crystal.calc = calculator
    before, after = ends_of_the_hop(crystal, options.fmax / 10)

    images = [before, *(before.copy() for _ in range(options.images - 2)), after]
    settings = {"climb": True, "method": "improvedtangent"}
    if options.single:
        band = NEB(images, **settings)
        for image in images:
            image.calc = MDCGCalculator(options.package)
    else:
        band = BatchNEB(images, calculator, **settings)
    band.interpolate(mic=True)
    optimizer = BFGS(band, logfile=None)
    if not optimizer.run(fmax=options.fmax, steps=300):
        raise SystemExit("the band has not converged in 300 steps")

    energies = np.array([image.get_potential_energy() for image in images])
    print(f"{len(before)} atoms, {len(images)} images, {optimizer.nsteps} steps")
    for image, energy in enumerate(energies - energies[0]):
        print(f"image {image}: {energy:.5f} eV")
    top = int(energies.argmax())
    print(f"barrier: {energies[top] - energies[0]:.5f} eV")
    curvatures = np.linalg.eigvalsh(calculator.get_hessian(images[top]))
    print(f"directions along which the energy falls: {np.sum(curvatures < -1e-3)}")

    options.out.mkdir(parents=True, exist_ok=True)
    ase.io.write(options.out / "neb.traj", images)
    print(f"see the path with:  ase gui {options.out / 'neb.traj'}")


if __name__ == "__main__":
    main()
